#include "choice/choice.h"

#include "core/error.h"
#include "fused/trainer.h"
#include "layered/trainer.h"
#include "resident/trainer.h"
#include "streamed/trainer.h"

namespace headroom {
namespace {

constexpr int kOneGroupOfRows =
    32;  // cuda-resident and cuda-streamed hold so many rows of a batch in registers at once
constexpr int kStreamedBatch = 128,
              kFusedBatch = 128;  // the most that the one takes, the least that the other does
// With more rows than one group: where reading each weight once begins to matter more than waiting for all thread blocks once a layer.
constexpr std::int64_t kManyParameters = 6'000'000;

bool streaming_wins(const Workload& workload, Precision precision) {
  if (workload.batch_size > kStreamedBatch) return false;
  if (workload.batch_size <= kOneGroupOfRows) return true;
  const bool sixteen_bits = precision == Precision::kFp16 || precision == Precision::kBf16;
  return sixteen_bits && workload.parameter_count() >= kManyParameters;
}

/// A trainer that says which strategy it is.
class ChosenTrainer : public Trainer {
 public:
  ChosenTrainer(std::unique_ptr<Trainer> trainer, Strategy strategy, std::string refusals)
      : trainer_(std::move(trainer)), strategy_(strategy), refusals_(std::move(refusals)) {}

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
  std::string note() override {
    const std::string inner = trainer_->note();
    return "takes " + std::string(to_string(strategy_)) + (inner.empty() ? "" : ": " + inner) + refusals_;
  }

 private:
  std::unique_ptr<Trainer> trainer_;
  Strategy strategy_;
  std::string refusals_;
};

std::unique_ptr<Trainer> make_trainer(Strategy strategy, const Workload& workload, Precision precision,
                                      const DatasetView& data, const Parameters& initial, int device) {
  switch (strategy) {
    case Strategy::kResident:
      return make_resident_trainer(workload, precision, data, initial, device);
    case Strategy::kStreamed:
      return make_streamed_trainer(workload, precision, data, initial, device);
    case Strategy::kFused:
      return make_fused_trainer(workload, precision, data, initial, device);
    case Strategy::kLayered:
      break;
  }
  return make_layered_trainer(workload, precision, data, initial, device);
}

}  // namespace

std::string_view to_string(Strategy strategy) {
  switch (strategy) {
    case Strategy::kResident:
      return "cuda-resident";
    case Strategy::kStreamed:
      return "cuda-streamed";
    case Strategy::kFused:
      return "cuda-fused";
    case Strategy::kLayered:
      break;
  }
  return "cuda-layered";
}

std::vector<Strategy> strategies_by_speed(const Workload& workload, Precision precision) {
  if (!beyond_plain_training(workload).empty()) return {Strategy::kLayered};
  std::vector<Strategy> order;
  if (workload.batch_size >= kFusedBatch) order.push_back(Strategy::kFused);
  if (workload.batch_size <= kOneGroupOfRows) order.push_back(Strategy::kResident);
  if (streaming_wins(workload, precision)) order.push_back(Strategy::kStreamed);
  order.push_back(Strategy::kLayered);
  return order;
}

std::optional<std::string> choice_unavailable(int device) { return layered_unavailable(device); }

std::unique_ptr<Trainer> make_chosen_trainer(const Workload& workload, Precision precision,
                                             const DatasetView& data, const Parameters& initial, int device) {
  const std::vector<Strategy> order = strategies_by_speed(workload, precision);
  std::string refusals;
  for (const Strategy strategy : order) {
    try {
      return std::make_unique<ChosenTrainer>(
          make_trainer(strategy, workload, precision, data, initial, device), strategy, refusals);
    } catch (const UnsupportedError& error) {
      if (strategy == order.back()) throw;
      refusals += "; refused: " + std::string(error.what());
    }
  }
  throw std::logic_error("no strategy to try for " + workload.name);
}

}  // namespace headroom
