// Every activation, loss and optimizer in the LibTorch rows, by the driver's step check of parameters and slots.
#include <gtest/gtest.h>

#include "torch_worker.h"

namespace headroom {
namespace {

const std::vector<Optimizer>& optimizers() {
  static const std::vector<Optimizer> all = {{},
                                             {.momentum = 0.9},
                                             {.kind = Optimizer::Kind::kAdam},
                                             {.kind = Optimizer::Kind::kAdamW, .weight_decay = 0.1}};
  return all;
}

Workload network(std::vector<int> widths, int batch_size, Activation activation, Loss loss,
                 const Optimizer& optimizer) {
  Workload workload = small_workload(std::move(widths), batch_size, std::random_device()());
  workload.model.activation = activation;
  workload.loss = loss;
  workload.optimizer = optimizer;
  return workload;
}

/// One output, one sample, and widths that nothing divides: each combination with one of them, or with all.
std::vector<Workload> odd_networks(bool all_shapes) {
  const std::pair<std::vector<int>, int> shapes[] = {
      {{17, 33, 5, 3}, 7}, {{17, 33, 5, 1}, 7}, {{5, 9, 2}, 1}};
  std::vector<Workload> all;
  std::size_t turn = 0;
  for (const Activation activation : kAllActivations)
    for (const Loss loss : kAllLosses)
      for (const Optimizer& optimizer : optimizers()) {
        ++turn;
        for (std::size_t shape = 0; shape < std::size(shapes); ++shape)
          // The cross-entropy of one output is 0.
          if ((all_shapes || shape == turn % std::size(shapes)) &&
              (loss != Loss::kCrossEntropy || shapes[shape].first.back() > 1))
            all.push_back(network(shapes[shape].first, shapes[shape].second, activation, loss, optimizer));
      }
  return all;
}

/// Of a size that the bounds of other roundings are for; losses and optimizers take turns.
std::vector<Workload> real_networks() {
  std::vector<Workload> all;
  std::size_t turn = 0;
  for (const Activation activation : kAllActivations)
    for (const Optimizer& optimizer : optimizers())
      all.push_back(network({784, 128, 128, 10}, 32, activation, kAllLosses[turn++ % 3], optimizer));
  return all;
}

void expect_training(WorkerClient& worker, const char* backend, Precision precision, Contract contract,
                     const Workload& workload) {
  const Scratch scratch(workload);
  SCOPED_TRACE(std::string(backend) + " " + default_name(workload) + " seed " +
               std::to_string(workload.seed));
  scratch.prepare(worker, backend, precision);
  const auto has_zero_slots = [&] {
    State state = State::unset(workload.model.widths, workload.optimizer.slots());
    worker.state(scratch.folder / "first");
    read_state(scratch.folder / "first", state);
    for (const Parameters& slot : state.slots)
      for (const float value : slot.flat())
        if (value != 0) return false;
    return true;
  };
  EXPECT_TRUE(has_zero_slots());  // whatever set-up has trained
  expect_steps_like_the_oracle(worker, scratch, precision, contract, {0, 1, 7});
}

class LibtorchRules : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Rows, LibtorchRules, ::testing::Values("libtorch-eager", "libtorch-expert"),
                         [](const auto& row) { return std::string(row.param).substr(9); });

TEST_P(LibtorchRules, EveryCombinationStepsLikeTheOracleOnTheCpu) {
  const Scratch home(small_workload());
  WorkerClient worker(torch_worker(home), -1);
  for (const Workload& workload : odd_networks(/*all_shapes=*/false))
    expect_training(worker, GetParam(), Precision::kFp32, Contract::kExact, workload);
}

/// Parameters are compared with the rule on the row's own slots, not with the oracle's: of a gradient near zero Adam may go either way.
TEST_P(LibtorchRules, ALargeStepNumberIsNoBiasCorrectionAnyMore) {
  const Scratch scratch(network({17, 33, 5, 3}, 7, Activation::kTanh, Loss::kMeanSquaredError,
                                {.kind = Optimizer::Kind::kAdam}));
  WorkerClient worker(torch_worker(scratch), -1);
  scratch.prepare(worker, GetParam());
  for (const std::int64_t step : {std::int64_t{1000}, std::int64_t{1} << 40}) {
    const ReferencePoint point =
        reference_step(scratch.workload, Precision::kFp32, Contract::kExact, scratch.view(),
                       State::initial(scratch.initial, 2), step, kCopies);
    const StepErrors errors = errors_at(worker, scratch, Precision::kFp32, Contract::kExact, point);
    for (const Check& check : step_update_checks(scratch.workload, {&errors, 1}, Precision::kFp32)) {
      EXPECT_TRUE(check.passed || check.name == "evidence")
          << check.name << " " << check.tensor << ": " << check.error << ", at most " << check.bound
          << ", step " << step << ", seed " << scratch.workload.seed;
    }
  }
}

struct RowOnGpu {
  const char* backend;
  Precision precision;
};
class LibtorchRulesOnGpu : public ::testing::TestWithParam<RowOnGpu> {};

TEST_P(LibtorchRulesOnGpu, EveryCombinationStepsLikeTheOracle) {
  const auto [backend, precision] = GetParam();
  const Scratch home(small_workload());
  WorkerClient worker(torch_worker(home), 0);
  const OfferedPrecision offer = offered(worker.hello(), backend, precision);
  if (offer.unavailable) GTEST_SKIP() << *offer.unavailable;
  // The expert row captures each network in every way that it may run, which takes it a second.
  const bool all_shapes = std::string_view(backend) != "libtorch-expert";
  if (offer.contract == Contract::kExact)
    for (const Workload& workload : odd_networks(all_shapes))
      expect_training(worker, backend, precision, offer.contract, workload);
  for (const Workload& workload : real_networks())
    expect_training(worker, backend, precision, offer.contract, workload);
}

std::vector<RowOnGpu> rows_on_gpu() {
  std::vector<RowOnGpu> all;
  for (const char* backend : {"libtorch-eager", "libtorch-graph", "libtorch-expert"})
    for (const Precision precision : kAllPrecisions) all.push_back({backend, precision});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Rows, LibtorchRulesOnGpu, ::testing::ValuesIn(rows_on_gpu()), [](const auto& row) {
  return std::string(row.param.backend).substr(9) + "_" + std::string(to_string(row.param.precision));
});

}  // namespace
}  // namespace headroom
