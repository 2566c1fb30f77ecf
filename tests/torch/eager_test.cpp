// libtorch-eager through the worker protocol, against the double-precision oracle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "torch_worker.h"

namespace headroom {
namespace {

using ::testing::HasSubstr;

constexpr const char* kBackend = "libtorch-eager";

TEST(LibtorchEager, OffersFp32WithoutAGpuAndSaysWhyNotTheRest) {
  const Scratch scratch(small_workload());
  WorkerClient worker(torch_worker(scratch), -1);
  const WorkerHello hello = worker.hello();
  EXPECT_FALSE(hello.device.has_value());
  EXPECT_THAT(hello.software.at("torch"), HasSubstr("."));
  EXPECT_EQ(offered(hello, kBackend, Precision::kFp32).unavailable, std::nullopt);
  for (const Precision precision : {Precision::kTf32, Precision::kFp16, Precision::kBf16}) {
    EXPECT_EQ(offered(hello, kBackend, precision).unavailable, "no CUDA device");
  }
}

TEST(LibtorchEager, StepsLikeTheOracleOnTheCpu) {
  for (const Workload& workload : workloads()) {
    SCOPED_TRACE(default_name(workload) + " seed " + std::to_string(workload.seed));
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
  worker.state(second.folder / "after");
  EXPECT_EQ(std::filesystem::file_size(second.folder / "after"), 4u * second.workload.parameter_count());
}

class LibtorchEagerOnGpu : public ::testing::TestWithParam<Precision> {};

TEST_P(LibtorchEagerOnGpu, StepsLikeTheOracle) {
  const Precision precision = GetParam();
  for (const Workload& workload : workloads()) {
    SCOPED_TRACE(default_name(workload) + " seed " + std::to_string(workload.seed));
    const Scratch scratch(workload);
    WorkerClient worker(torch_worker(scratch), 0);
    const OfferedPrecision offer = offered(worker.hello(), kBackend, precision);
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
  if (const auto reason = offered(hello, kBackend, Precision::kFp32).unavailable) GTEST_SKIP() << *reason;
  // The inputs alone, [samples, 60000], are more than the device holds; the files are sparse and never read.
  Scratch large(small_workload({60000, 2}, 1), 2);
  large.data.samples = hello.device->memory_bytes / (60000 * 4) + 1;
  std::filesystem::resize_file(large.data.features,
                               static_cast<std::uintmax_t>(large.data.samples) * 60000 * 4);
  std::filesystem::resize_file(large.data.targets, static_cast<std::uintmax_t>(large.data.samples) * 4);
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
