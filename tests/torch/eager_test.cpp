// The LibTorch rows through the worker protocol, against the double-precision oracle.
//
// The worker finds PyTorch through HEADROOM_TORCH_LIBRARY_PATH, which `./headroom test` sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <random>

#include "analysis/verification.h"
#include "core/oracle.h"
#include "scratch.h"

namespace headroom {
namespace {

using ::testing::HasSubstr;

constexpr const char* kBackend = "libtorch-eager";

/// Networks of odd shapes and an ordinary one; the seed is fresh for each run and shown when a test fails.
std::vector<Workload> workloads() {
  const std::uint64_t seed = std::random_device()();
  std::vector<Workload> result = {small_workload({33, 7, 10}, 1, seed),
                                  small_workload({20, 10}, 31, seed + 1),
                                  small_workload({784, 128, 128, 10}, 32, seed + 2)};
  for (Workload& workload : result) workload.optimizer.learning_rate = 0.003;
  return result;
}

WorkerCommand torch_worker(const Scratch& scratch) {
  WorkerCommand command{
      "libtorch", {(program_folder() / "headroom-torch-worker").string()}, {}, scratch.folder / "log"};
  const char* torch_path = std::getenv("HEADROOM_TORCH_LIBRARY_PATH");
  const char* path = std::getenv("LD_LIBRARY_PATH");
  if (torch_path != nullptr) {
    command.environment["LD_LIBRARY_PATH"] = torch_path + (path != nullptr ? ":" + std::string(path) : "");
  }
  return command;
}

OfferedPrecision offered(const WorkerHello& hello, Precision precision) {
  for (const OfferedBackend& backend : hello.backends) {
    if (backend.name == kBackend) return backend.precisions.at(precision);
  }
  ADD_FAILURE() << kBackend << " is not there";
  return {};
}

/// The check before timing, as the driver makes it.
void expect_steps_like_the_oracle(WorkerClient& worker, const Scratch& scratch, Precision precision,
                                  Contract contract) {
  const std::vector<std::int64_t> steps(std::begin(kCheckSteps), std::end(kCheckSteps));
  std::vector<StepErrors> errors;
  follow_reference(
      scratch.workload, precision, /*rounding=*/true, scratch.view(), scratch.initial, steps,
      [&](const ReferencePoint& point) {
        write_floats(scratch.folder / "start", point.start.flat());
        worker.set_parameters(scratch.folder / "start");
        worker.train(point.step, 1);
        worker.parameters(scratch.folder / "after");
        Parameters after(scratch.workload.widths);
        const std::vector<float> values =
            read_floats(scratch.folder / "after", scratch.workload.parameter_count());
        std::ranges::copy(values, after.flat().begin());
        errors.push_back(compare_step(point.step, point.start, after, point.update));
        if (contract == Contract::kExact) {
          const float loss = worker.losses(point.step, 1, scratch.folder / "losses").at(0);
          EXPECT_NEAR(loss, point.loss, 1e-5 * (1 + point.loss));
        }
      },
      [](const Parameters&) {});
  const Verification verification = judge(step_update_checks(scratch.workload, errors, contract, precision));
  EXPECT_EQ(verification.verdict, Verdict::kPass) << failure_message(verification);
}

TEST(LibtorchEager, OffersFp32WithoutAGpuAndSaysWhyNotTheRest) {
  const Scratch scratch(small_workload());
  WorkerClient worker(torch_worker(scratch), -1);
  const WorkerHello hello = worker.hello();
  EXPECT_FALSE(hello.device.has_value());
  EXPECT_THAT(hello.software.at("torch"), HasSubstr("."));
  EXPECT_EQ(offered(hello, Precision::kFp32).unavailable, std::nullopt);
  for (const Precision precision : {Precision::kTf32, Precision::kFp16, Precision::kBf16}) {
    EXPECT_EQ(offered(hello, precision).unavailable, "no CUDA device");
  }
}

TEST(LibtorchEager, StepsLikeTheOracleOnTheCpu) {
  for (const Workload& workload : workloads()) {
    SCOPED_TRACE(default_name(workload.widths, workload.batch_size) + " seed " +
                 std::to_string(workload.seed));
    const Scratch scratch(workload);
    WorkerClient worker(torch_worker(scratch), -1);
    scratch.prepare(worker, kBackend);
    expect_steps_like_the_oracle(worker, scratch, Precision::kFp32, Contract::kExact);
    EXPECT_EQ(worker.release(), std::nullopt);
  }
}

TEST(LibtorchEager, LossesOfABlockAreTheOraclesOnTheCpu) {
  const Scratch scratch(workloads().back());
  SCOPED_TRACE("seed " + std::to_string(scratch.workload.seed));
  constexpr int kSteps = 30;
  const std::unique_ptr<Trainer> oracle =
      make_oracle_trainer(scratch.workload, Precision::kFp32, true, scratch.view(), scratch.initial);
  oracle->train(0, kSteps);
  const std::vector<float> expected = oracle->losses(0, kSteps);
  WorkerClient worker(torch_worker(scratch), -1);
  scratch.prepare(worker, kBackend);
  const Timing timing = worker.train(0, kSteps);
  EXPECT_GT(timing.device_seconds, 0);
  EXPECT_GT(timing.cpu_seconds, 0);
  const std::vector<float> losses = worker.losses(0, kSteps, scratch.folder / "losses");
  for (int step = 0; step < kSteps; ++step)
    EXPECT_NEAR(losses[step], expected[step], 1e-5) << "step " << step;
}

TEST(LibtorchEager, TakesAnotherWorkloadAfterTheFirst) {
  const Scratch first(small_workload()), second(small_workload({9, 8, 2}, 3));
  WorkerClient worker(torch_worker(first), -1);
  first.prepare(worker, kBackend);
  worker.train(0, 3);
  second.prepare(worker, kBackend);
  worker.train(0, 3);
  EXPECT_EQ(worker.losses(0, 3, second.folder / "losses").size(), 3u);
  worker.parameters(second.folder / "after");
  EXPECT_EQ(std::filesystem::file_size(second.folder / "after"), 4u * second.workload.parameter_count());
}

class LibtorchEagerOnGpu : public ::testing::TestWithParam<Precision> {};

TEST_P(LibtorchEagerOnGpu, StepsLikeTheOracle) {
  const Precision precision = GetParam();
  for (const Workload& workload : workloads()) {
    SCOPED_TRACE(default_name(workload.widths, workload.batch_size) + " seed " +
                 std::to_string(workload.seed));
    const Scratch scratch(workload);
    WorkerClient worker(torch_worker(scratch), 0);
    const OfferedPrecision offer = offered(worker.hello(), precision);
    if (offer.unavailable) GTEST_SKIP() << *offer.unavailable;
    // One ReLU that a 16-bit logit flips is a large part of a tiny network: its bounds are for real ones.
    if (offer.contract != Contract::kExact && workload.inputs() < 784) continue;
    scratch.prepare(worker, kBackend, precision);
    expect_steps_like_the_oracle(worker, scratch, precision, offer.contract);
    const Timing timing = worker.train(0, 200);
    EXPECT_GT(timing.device_seconds, 0);
    EXPECT_GE(timing.wall_seconds, 0.9 * timing.device_seconds);
    for (const float loss : worker.losses(0, 200, scratch.folder / "losses")) {
      EXPECT_TRUE(loss >= 0 && loss <= std::numeric_limits<float>::max()) << loss;
    }
    EXPECT_GT(worker.release().value_or(0), 0);
  }
}

TEST(LibtorchEagerMemoryOnGpu, RunningOutIsItsOwnKindOfErrorAndTheWorkerGoesOn) {
  const Scratch small(small_workload());
  WorkerClient worker(torch_worker(small), 0);
  const WorkerHello hello = worker.hello();
  if (const auto reason = offered(hello, Precision::kFp32).unavailable) GTEST_SKIP() << *reason;
  // The inputs alone, [samples, 60000], are more than the device holds; the files are sparse and never read.
  Scratch large(small_workload({60000, 2}, 1), 2);
  large.data.samples = hello.device->memory_bytes / (60000 * 4) + 1;
  std::filesystem::resize_file(large.data.features,
                               static_cast<std::uintmax_t>(large.data.samples) * 60000 * 4);
  std::filesystem::resize_file(large.data.labels, static_cast<std::uintmax_t>(large.data.samples) * 4);
  try {
    large.prepare(worker, kBackend);
    ADD_FAILURE() << "prepared";
  } catch (const WorkerCallError& error) {
    EXPECT_EQ(error.kind(), WorkerCallError::Kind::kOutOfMemory) << error.what();
  }
  small.prepare(worker, kBackend);
  EXPECT_GT(worker.train(0, 3).device_seconds, 0);
}

INSTANTIATE_TEST_SUITE_P(Precisions, LibtorchEagerOnGpu, ::testing::ValuesIn(kAllPrecisions),
                         [](const auto& precision) { return std::string(to_string(precision.param)); });

}  // namespace
}  // namespace headroom
