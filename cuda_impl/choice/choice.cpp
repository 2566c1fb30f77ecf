#include "choice/choice.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "choice/kept_choices.h"
#include "choice/sources.h"
#include "core/error.h"
#include "device/check.h"
#include "device/memory.h"

namespace headroom {
namespace {

using choice::Candidate;
using choice::KeptChoices;

/// A trainer that says which of several it is.
class ChosenTrainer : public Trainer {
 public:
  ChosenTrainer(std::unique_ptr<Trainer> trainer, Choice choice)
      : trainer_(std::move(trainer)), choice_(std::move(choice)) {}

  Timing train(std::int64_t first_step, std::int64_t count) override {
    return trainer_->train(first_step, count);
  }
  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    return trainer_->losses(first_step, count);
  }
  Parameters parameters() override { return trainer_->parameters(); }
  void set_parameters(const Parameters& parameters) override { trainer_->set_parameters(parameters); }
  std::vector<Parameters> slots() override { return trainer_->slots(); }
  void set_slots(const std::vector<Parameters>& slots) override { trainer_->set_slots(slots); }
  std::int64_t peak_device_bytes() override { return trainer_->peak_device_bytes(); }
  std::optional<SetupCache> setup_cache() override { return trainer_->setup_cache(); }
  std::optional<Choice> choice() override { return choice_; }

  /// "takes cuda-tiled: its note; timed 18.4 us, cuda-layered 33 us; left out: cuda-fused: why".
  std::string note() override {
    const std::string inner = trainer_->note();
    std::string text = "takes " + choice_.taken + (inner.empty() ? "" : ": " + inner);
    text += choice_.was_kept ? "; as an earlier run chose" : "";
    std::string timed, left_out;
    for (const Choice::Candidate& one : choice_.candidates) {
      if (one.step_seconds) {
        char time[32];
        std::snprintf(time, sizeof time, "%.3g us", 1e6 * *one.step_seconds);
        timed += (timed.empty() ? "" : ", ") + one.backend + " " + time;
      }
      if (one.left_out.empty()) continue;
      // Most say themselves who speaks.
      const bool is_named = one.left_out.starts_with(one.backend + ": ");
      left_out += (left_out.empty() ? "" : ", ") + (is_named ? "" : one.backend + ": ") + one.left_out;
    }
    if (!timed.empty()) text += "; timed: " + timed;
    if (!left_out.empty()) text += "; left out: " + left_out;
    return text;
  }

 private:
  std::unique_ptr<Trainer> trainer_;
  Choice choice_;
};

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The trainer that an earlier run has taken; null if it cannot be had any more.
std::unique_ptr<Trainer> set_up_again(const Choice& kept, std::span<const Candidate> candidates) {
  for (const Candidate& candidate : candidates) {
    if (candidate.backend != kept.taken) continue;
    try {
      return candidate.set_up();
    } catch (const DeviceStuckError&) {
      throw;
    } catch (const std::exception&) {
      return nullptr;  // measuring says what is wrong with it
    }
  }
  return nullptr;
}

/// The candidates, without those that an earlier process lost the device with.
std::vector<Candidate> without_lost(std::span<const Candidate> candidates,
                                    const std::optional<Choice>& kept) {
  std::vector<Candidate> rest(candidates.begin(), candidates.end());
  if (!kept || !kept->taken.empty()) return rest;
  for (const Choice::Candidate& one : kept->candidates) {
    if (!one.left_out.starts_with(choice::kLost)) continue;
    for (Candidate& candidate : rest)
      if (candidate.backend == one.backend)
        candidate.out_of_reach = [reason = one.left_out] { return std::optional(reason); };
  }
  return rest;
}

}  // namespace

std::unique_ptr<Trainer> make_chosen_trainer(const ChoiceRequest& request,
                                             std::span<const Candidate> candidates, const choice::Rule& rule,
                                             const choice::Surroundings& surroundings) {
  const std::string key = choice::key_of(request.gpu, choice::source_digest(), request.workload,
                                         request.precision, request.samples);
  const std::filesystem::path folder = request.cache_folder;
  const KeptChoices choices(folder.empty() ? folder : folder / "choices", request.since);
  const std::optional<Choice> kept = choices.find(key);
  if (kept && !kept->taken.empty())
    if (std::unique_ptr<Trainer> trainer = set_up_again(*kept, candidates))
      return std::make_unique<ChosenTrainer>(std::move(trainer), *kept);
  try {
    choice::Measured measured = choice::measure(without_lost(candidates, kept), rule, surroundings);
    measured.trainer->set_state(State::initial(request.initial, request.workload.optimizer.slots()));
    DeviceMemory::reset_peak();  // of what the others held
    (void)choices.keep(key, measured.choice, unix_seconds());
    return std::make_unique<ChosenTrainer>(std::move(measured.trainer), std::move(measured.choice));
  } catch (const choice::DeviceLostError& lost) {
    (void)choices.keep(key, lost.choice, unix_seconds());
    throw;
  }
}

std::optional<std::string> lacks_memory(const Workload& workload, Precision precision, std::int64_t samples) {
  const double small = precision == Precision::kFp32 || precision == Precision::kTf32 ? 4 : 2;
  double widths = 0;
  for (const int width : workload.model.widths) widths += width;
  const double labels = workload.loss == Loss::kCrossEntropy ? 1 : workload.outputs();
  const double needed =
      static_cast<double>(samples) * (small * workload.inputs() + 4 * labels) +
      4.0 * (1 + workload.optimizer.slots()) * static_cast<double>(workload.parameter_count()) +
      small * workload.batch_size * widths;
  std::size_t free = 0, all = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &all));
  if (needed <= static_cast<double>(free)) return std::nullopt;
  char text[160];
  std::snprintf(text, sizeof text,
                "not tried: needs at least %.3g GB, and %.3g GB are free beside the others", 1e-9 * needed,
                1e-9 * static_cast<double>(free));
  return text;
}

choice::Surroundings on_this_device() {
  return {
      .seconds =
          [] {
            return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
          },
      .broken = []() -> std::optional<std::string> {
        (void)cudaGetLastError();  // what a launch that was refused has left
        const cudaError_t code = cudaDeviceSynchronize();
        if (code == cudaSuccess) return std::nullopt;
        return cudaGetErrorString(code);
      }};
}

double choices_since() {
  const char* value = std::getenv("HEADROOM_CHOICES_SINCE");
  return value == nullptr ? 0 : std::strtod(value, nullptr);
}

}  // namespace headroom
