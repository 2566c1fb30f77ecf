#include "faulty_trainers.h"

#include <algorithm>
#include <limits>

namespace headroom {
namespace {

/// An oracle and the request's workload, which must live as long.
struct Oracle {
  Oracle(const TrainerRequest& request, double learning_rate_factor) : workload(request.workload) {
    workload.optimizer.learning_rate *= learning_rate_factor;
    trainer =
        make_oracle_trainer(workload, request.precision, /*rounding=*/true, request.data, request.initial);
  }
  Workload workload;
  std::unique_ptr<Trainer> trainer;
};

class FaultyTrainer : public Trainer {
 public:
  FaultyTrainer(const TrainerRequest& request, Fault fault)
      : fault_(fault), oracle_(request, fault == Fault::kLearningRate ? 1.01 : 1.0) {}

  Timing train(std::int64_t first_step, std::int64_t count) override {
    switch (fault_) {
      case Fault::kNone:
      case Fault::kLearningRate:
        return oracle_.trainer->train(first_step, count);
      case Fault::kShiftedBatches:
        return oracle_.trainer->train(first_step + 1, count);
      case Fault::kFrozenLayer:
      case Fault::kNoBiasUpdate:
      case Fault::kNan:
        break;
    }
    Timing sum;
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      const Parameters before = oracle_.trainer->parameters();
      const Timing timing = oracle_.trainer->train(step, 1);
      sum.device_seconds += timing.device_seconds;
      sum.wall_seconds += timing.wall_seconds;
      sum.cpu_seconds += timing.cpu_seconds;
      Parameters after = oracle_.trainer->parameters();
      spoil(before, after);
      oracle_.trainer->set_parameters(after);
    }
    return sum;
  }

  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    return oracle_.trainer->losses(first_step + (fault_ == Fault::kShiftedBatches ? 1 : 0), count);
  }
  Parameters parameters() override { return oracle_.trainer->parameters(); }
  void set_parameters(const Parameters& parameters) override { oracle_.trainer->set_parameters(parameters); }

 private:
  void spoil(const Parameters& before, Parameters& after) const {
    const int frozen = after.layers() / 2;
    if (fault_ == Fault::kFrozenLayer) std::ranges::copy(before.weight(frozen), after.weight(frozen).begin());
    for (int layer = 0; layer < after.layers(); ++layer) {
      if (fault_ == Fault::kNoBiasUpdate || (fault_ == Fault::kFrozenLayer && layer == frozen)) {
        std::ranges::copy(before.bias(layer), after.bias(layer).begin());
      }
    }
    if (fault_ == Fault::kNan) after.bias(after.layers() - 1)[0] = std::numeric_limits<float>::quiet_NaN();
  }

  Fault fault_;
  Oracle oracle_;
};

}  // namespace

std::unique_ptr<Trainer> make_faulty_trainer(const TrainerRequest& request, Fault fault) {
  return std::make_unique<FaultyTrainer>(request, fault);
}

}  // namespace headroom
