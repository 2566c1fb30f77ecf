// headroom-fault-worker: backends that do nothing, that train wrongly, and that misbehave as a process.
//
// The tests of the protocol and of the driver start it. It is a worker like any other: whatever it does
// wrong, it does behind serve().
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "faulty_trainers.h"
#include "worker/server.h"

namespace headroom {
namespace {

using Clock = std::chrono::steady_clock;

/// Trains nothing and takes a fixed time for each step, so that what a block takes beyond that is the cost of
/// the driver and of the protocol.
class EmptyTrainer : public Trainer {
 public:
  static constexpr auto kStep = std::chrono::microseconds(10);

  explicit EmptyTrainer(const TrainerRequest& request)
      : parameters_(request.initial), loss_(std::log(static_cast<float>(request.workload.classes()))) {}

  Timing train(std::int64_t, std::int64_t count) override {
    const Clock::time_point start = Clock::now();
    const Clock::time_point end = start + count * kStep;
    while (Clock::now() < end) {
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return {seconds, seconds, seconds};
  }
  std::vector<float> losses(std::int64_t, std::int64_t count) override {
    return std::vector<float>(static_cast<std::size_t>(count), loss_);
  }
  Parameters parameters() override { return parameters_; }
  void set_parameters(const Parameters& parameters) override { parameters_ = parameters; }
  std::int64_t peak_device_bytes() override { return 4096; }

 private:
  Parameters parameters_;
  float loss_;
};

/// An empty trainer with something else to do before it trains.
class MisbehavingTrainer : public EmptyTrainer {
 public:
  MisbehavingTrainer(const TrainerRequest& request, void (*misbehave)())
      : EmptyTrainer(request), misbehave_(misbehave) {}
  Timing train(std::int64_t first_step, std::int64_t count) override {
    misbehave_();
    return EmptyTrainer::train(first_step, count);
  }

 private:
  void (*misbehave_)();
};

/// Trains as it should, and ends the process when it is asked for its memory, which is when it is released.
class DyingAtReleaseTrainer : public Trainer {
 public:
  explicit DyingAtReleaseTrainer(const TrainerRequest& request)
      : honest_(make_faulty_trainer(request, Fault::kNone)) {}
  Timing train(std::int64_t first_step, std::int64_t count) override {
    return honest_->train(first_step, count);
  }
  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    return honest_->losses(first_step, count);
  }
  Parameters parameters() override { return honest_->parameters(); }
  void set_parameters(const Parameters& parameters) override { honest_->set_parameters(parameters); }
  std::int64_t peak_device_bytes() override;

 private:
  std::unique_ptr<Trainer> honest_;
};

/// The device is stuck: whoever waits for it, as destructors do, waits for ever.
class StuckTrainer : public EmptyTrainer {
 public:
  using EmptyTrainer::EmptyTrainer;
  ~StuckTrainer() override {
    while (true) std::this_thread::sleep_for(std::chrono::hours(1));
  }
  Timing train(std::int64_t, std::int64_t) override {
    throw DeviceStuckError("step 7 was not done after 10 s");
  }
};

class NonFiniteTimeTrainer : public EmptyTrainer {
 public:
  using EmptyTrainer::EmptyTrainer;
  Timing train(std::int64_t, std::int64_t) override {
    return {std::numeric_limits<double>::quiet_NaN(), 1, 1};
  }
};

/// serve() has moved the protocol away from descriptor 1; only malice finds it again.
void write_rubbish() {
  constexpr std::string_view rubbish = "Segmentation fault (core dumped)\n";
  for (int descriptor = 3; descriptor < 64; ++descriptor) {
    struct stat status{};
    const bool pipe = ::fstat(descriptor, &status) == 0 && S_ISFIFO(status.st_mode);
    if (!pipe || (::fcntl(descriptor, F_GETFL) & O_ACCMODE) != O_WRONLY) continue;
    if (::write(descriptor, rubbish.data(), rubbish.size()) < 0) std::abort();
  }
}

void print() {
  std::printf("{\"id\": 1, \"ok\": true}\n");
  std::fflush(stdout);
  std::cout << "a library says hello" << std::endl;
}

void die() {
  std::cerr << "about to abort\n";
  std::abort();
}

std::int64_t DyingAtReleaseTrainer::peak_device_bytes() {
  die();
  return 0;
}

void hang() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

using MakeTrainer = std::function<std::unique_ptr<Trainer>(const TrainerRequest&)>;

MakeTrainer faulty(Fault fault) {
  return [fault](const TrainerRequest& request) { return make_faulty_trainer(request, fault); };
}

/// The same with another workload than the request's; the trainer keeps a copy.
MakeTrainer honest_with(Workload (Workload::*trained)() const) {
  return [trained](const TrainerRequest& request) {
    const Workload workload = (request.workload.*trained)();
    return make_faulty_trainer(
        {workload, request.precision, request.data, request.initial, request.device, request.cache_folder},
        Fault::kNone);
  };
}

MakeTrainer misbehaving(void (*misbehave)()) {
  return [misbehave](const TrainerRequest& request) {
    return std::make_unique<MisbehavingTrainer>(request, misbehave);
  };
}

/// The device that the tests' NVML knows (tests/driver/fake_nvml.cpp).
DeviceInfo made_up_device() {
  return {"made-up GPU", "GPU-fa4e0000-0000-0000-0000-000000000001", "1.0", 0, 132, 9, 0, 1 << 30, 1 << 20};
}

/// Rates of no real device. FAULT_CALIBRATION says what is wrong with them: "dies", "partly", "slow", "nan" or nothing.
Calibration made_up_calibration(const std::vector<int>&) {
  const std::string_view wrong = std::getenv("FAULT_CALIBRATION");
  if (wrong == "dies") die();
  const double speed = wrong == "slow" ? 1e-4 : 1;
  Calibration rates;
  const auto add = [&](const char* name, double value, const char* unit) {
    rates[name] = {value, unit, "made up for a test"};
  };
  add("copy", 4e12 * speed, "bytes_per_second");
  add("read", 4e12 * speed, "bytes_per_second");
  add("one_sm_read", 1e11 * speed, "bytes_per_second");
  add("on_chip", 6e7, "bytes");
  add("fp32", 6e13 * speed, "flops_per_second");
  add("matrix_fp32", 5e13 * speed, "flops_per_second");
  if (wrong != "partly") add("matrix_bf16", 7e14 * speed, "flops_per_second");
  add("remote_read", wrong == "nan" ? std::nan("") : 1.3e-7 / speed, "seconds");
  add("cluster_gather_128", 4e-7 / speed, "seconds");
  return rates;
}

WorkerDescription describe(int) {
  const std::vector<std::pair<std::string, MakeTrainer>> rows = {
      {"empty", [](const TrainerRequest& request) { return std::make_unique<EmptyTrainer>(request); }},
      {"oracle-honest", honest_with(&Workload::joined)},
      {"honest", faulty(Fault::kNone)},
      {"fault-learning-rate", faulty(Fault::kLearningRate)},
      {"fault-frozen-layer", faulty(Fault::kFrozenLayer)},
      {"fault-bias", faulty(Fault::kNoBiasUpdate)},
      {"fault-shifted-batches", faulty(Fault::kShiftedBatches)},
      {"fault-nan", faulty(Fault::kNan)},
      {"fault-one-rank", honest_with(&Workload::of_a_rank)},  // the batch of rank 0 alone
      {"fault-dies", misbehaving(die)},
      {"fault-hangs", misbehaving(hang)},
      {"fault-rubbish", misbehaving(write_rubbish)},
      {"fault-prints", misbehaving(print)},
      {"fault-throws", misbehaving([] { throw std::runtime_error("two\nlines"); })},
      {"fault-stuck", [](const TrainerRequest& request) { return std::make_unique<StuckTrainer>(request); }},
      {"fault-times",
       [](const TrainerRequest& request) { return std::make_unique<NonFiniteTimeTrainer>(request); }},
      {"fault-out-of-memory",
       [](const TrainerRequest&) -> std::unique_ptr<Trainer> {
         throw OutOfMemoryError("asked for 1 TB, 1 GB is free");
       }},
      {"fault-dies-in-prepare",
       [](const TrainerRequest&) -> std::unique_ptr<Trainer> {
         die();
         return nullptr;
       }},
      {"fault-hangs-in-prepare",
       [](const TrainerRequest&) -> std::unique_ptr<Trainer> {
         hang();
         return nullptr;
       }},
      {"fault-dies-in-release",
       [](const TrainerRequest& request) { return std::make_unique<DyingAtReleaseTrainer>(request); }},
      {"fault-throws-in-prepare",
       [](const TrainerRequest&) -> std::unique_ptr<Trainer> {
         throw std::runtime_error("ptxas is missing");
       }},
      {"fault-unsupported",
       [](const TrainerRequest&) -> std::unique_ptr<Trainer> {
         throw UnsupportedError("widths must be even");
       }},
  };
  WorkerDescription description{"fault", {{"fault", "1"}}, std::nullopt, {}};
  if (const char* device = std::getenv("FAULT_DEVICE")) {
    description.device = made_up_device();
    // One that NVML does not know, so that no other test waits for its lock.
    if (std::string_view(device) != "1") description.device->uuid = device;
  }
  if (std::getenv("FAULT_DEVICES") != nullptr) {
    description.devices = {made_up_device(), made_up_device()};
    description.devices[1].index = 1;
    description.devices[1].uuid.back() = '2';
  }
  if (std::getenv("FAULT_CALIBRATION") != nullptr) description.calibrate = made_up_calibration;
  for (const auto& [name, make_trainer] : rows) {
    Backend& backend = description.backends.emplace_back();
    backend.name = name;
    for (const Precision precision : kAllPrecisions) {
      backend.precisions.push_back({precision, Contract::kExact, std::nullopt});
    }
    backend.make_trainer = make_trainer;
    backend.description = "of the tests";
    if (name == "oracle-honest" || name == "fault-one-rank") backend.max_devices = 2;
    if (name == "oracle-honest") backend.family = Family::kReference;  // no competitor of the others
  }
  Backend& reference = description.backends.emplace_back();
  reference.name = "reference";
  reference.family = Family::kReference;
  for (const Precision precision : kAllPrecisions)
    reference.precisions.push_back({precision, Contract::kExact, std::nullopt});
  reference.reference = [](const TrainerRequest& request, const std::vector<std::int64_t>& steps,
                           std::int64_t, const ReferenceWanted& wanted, const auto& point,
                           const auto& after_free_steps) {
    return follow_reference(request.workload, request.precision, /*rounding=*/true, request.data,
                            request.initial, steps, point, after_free_steps, wanted);
  };
  Backend& unavailable = description.backends.emplace_back();
  unavailable.name = "fault-unavailable";
  unavailable.precisions = {{Precision::kFp32, Contract::kExact, "no such device in this machine"}};
  return description;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) { return headroom::serve(argc, argv, headroom::describe); }
