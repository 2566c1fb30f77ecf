// libtorch-graph and libtorch-expert through the worker protocol, against the double-precision oracle.
//
// What a captured step can get wrong is which batch it trains and where its loss goes; hence blocks of every
// length, jumps between steps, and batches that are gathered as well as batches that are read where they lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "torch_worker.h"

namespace headroom {
namespace {

using ::testing::HasSubstr;

constexpr const char* kCapturedBackends[] = {"libtorch-graph", "libtorch-expert"};

TEST(LibtorchGraph, IsNotOfferedWithoutAGpu) {
  const Scratch scratch(small_workload());
  WorkerClient worker(torch_worker(scratch), -1);
  const WorkerHello hello = worker.hello();
  for (const Precision precision : kAllPrecisions)
    EXPECT_EQ(offered(hello, "libtorch-graph", precision).unavailable, "no CUDA device");
}

TEST(LibtorchExpert, OffersFp32WithoutAGpuAndSaysWhyNotTheRest) {
  const Scratch scratch(small_workload());
  WorkerClient worker(torch_worker(scratch), -1);
  const WorkerHello hello = worker.hello();
  EXPECT_EQ(offered(hello, "libtorch-expert", Precision::kFp32).unavailable, std::nullopt);
  for (const Precision precision : {Precision::kTf32, Precision::kFp16, Precision::kBf16})
    EXPECT_EQ(offered(hello, "libtorch-expert", precision).unavailable, "no CUDA device");
}

TEST(LibtorchExpert, ObeysTheContractExceptForTf32) {
  const Scratch scratch(small_workload());
  WorkerClient worker(torch_worker(scratch), -1);
  const WorkerHello hello = worker.hello();
  for (const Precision precision : {Precision::kFp32, Precision::kFp16, Precision::kBf16})
    EXPECT_EQ(offered(hello, "libtorch-expert", precision).contract, Contract::kExact);
  EXPECT_EQ(offered(hello, "libtorch-expert", Precision::kTf32).contract, Contract::kLibrary);
}

TEST(LibtorchExpert, StepsLikeTheOracleOnTheCpu) {
  for (const Workload& workload : workloads()) {
    SCOPED_TRACE(default_name(workload) + " seed " + std::to_string(workload.seed));
    const Scratch scratch(workload);
    WorkerClient worker(torch_worker(scratch), -1);
    scratch.prepare(worker, "libtorch-expert");
    expect_steps_like_the_oracle(worker, scratch, Precision::kFp32, Contract::kExact);
  }
}

TEST(LibtorchExpert, StepsLikeTheOracleOnALargeBatchOnTheCpu) {
  const Scratch scratch(small_workload({33, 24, 10}, 4096, std::random_device()()), 2 * 4096);
  SCOPED_TRACE("seed " + std::to_string(scratch.workload.seed));
  WorkerClient worker(torch_worker(scratch), -1);
  scratch.prepare(worker, "libtorch-expert");
  expect_steps_like_the_oracle(worker, scratch, Precision::kFp32, Contract::kExact, {0, 1, 7});
}

struct Captured {
  const char* backend;
  Precision precision;
};

class LibtorchCapturedOnGpu : public ::testing::TestWithParam<Captured> {};

TEST_P(LibtorchCapturedOnGpu, StepsLikeTheOracle) {
  const auto [backend, precision] = GetParam();
  std::vector<Workload> networks = workloads();
  networks.push_back(small_workload({50, 65, 7, 12}, 31, networks.back().seed + 1));
  const Scratch home(small_workload());
  WorkerClient worker(torch_worker(home), 0);  // one for all: what a trainer leaves behind must not matter
  const OfferedPrecision offer = offered(worker.hello(), backend, precision);
  if (offer.unavailable) GTEST_SKIP() << *offer.unavailable;
  for (const Workload& workload : networks) {
    SCOPED_TRACE(default_name(workload) + " seed " + std::to_string(workload.seed));
    const Scratch scratch(workload);
    // One ReLU that a 16-bit logit flips is a large part of a tiny network: its bounds are for real ones.
    if (offer.contract != Contract::kExact && workload.inputs() < 784) continue;
    scratch.prepare(worker, backend, precision);
    expect_steps_like_the_oracle(worker, scratch, precision, offer.contract);
    const Timing timing = worker.train(0, 200);
    EXPECT_GT(timing.device_seconds, 0);
    for (const float loss : worker.losses(0, 200, scratch.folder / "losses"))
      EXPECT_TRUE(loss >= 0 && loss <= std::numeric_limits<float>::max()) << loss;
    EXPECT_GT(worker.release().value_or(0), 0);
  }
}

TEST_P(LibtorchCapturedOnGpu, StepsLikeTheOracleOnLargeBatchesThatStayWhereTheyAre) {
  const auto [backend, precision] = GetParam();
  const Scratch scratch(small_workload({784, 256, 10}, 4096, std::random_device()()),
                        3 * 4096);  // 6 MB or 13
  SCOPED_TRACE("seed " + std::to_string(scratch.workload.seed));
  WorkerClient worker(torch_worker(scratch), 0);
  const OfferedPrecision offer = offered(worker.hello(), backend, precision);
  if (offer.unavailable) GTEST_SKIP() << *offer.unavailable;
  EXPECT_THAT(scratch.prepare(worker, backend, precision).note, HasSubstr("a graph for each batch"));
  expect_steps_like_the_oracle(worker, scratch, precision, offer.contract, {0, 1, 7});
}

TEST_P(LibtorchCapturedOnGpu, AnySplitOfTheStepsTrainsTheSame) {
  const auto [backend, precision] = GetParam();
  const Scratch scratch(small_workload({20, 24, 10}, 8, std::random_device()()));
  WorkerClient worker(torch_worker(scratch), 0);
  if (const auto reason = offered(worker.hello(), backend, precision).unavailable) GTEST_SKIP() << *reason;
  scratch.prepare(worker, backend, precision);
  worker.train(0, 60);
  const std::vector<float> whole = worker.losses(0, 60, scratch.folder / "losses");
  worker.set_state(scratch.parameters_file);
  std::vector<float> pieces;
  for (const auto& [first, count] : {std::pair{0, 1}, {1, 7}, {8, 33}, {41, 3}, {44, 16}}) {
    worker.train(first, count);
    const std::vector<float> more = worker.losses(first, count, scratch.folder / "losses");
    pieces.insert(pieces.end(), more.begin(), more.end());
  }
  ASSERT_EQ(whole.size(), pieces.size());
  for (std::size_t step = 0; step < whole.size(); ++step)
    EXPECT_NEAR(whole[step], pieces[step], 1e-4) << "step " << step << ", seed " << scratch.workload.seed;
}

TEST_P(LibtorchCapturedOnGpu, StepNumbersChooseTheBatch) {
  const auto [backend, precision] = GetParam();
  const Scratch scratch(small_workload({20, 24, 10}, 8, std::random_device()()));
  WorkerClient worker(torch_worker(scratch), 0);
  if (const auto reason = offered(worker.hello(), backend, precision).unavailable) GTEST_SKIP() << *reason;
  scratch.prepare(worker, backend, precision);
  const std::int64_t batches = scratch.view().batches(8);
  for (const std::int64_t step :
       {std::int64_t{0}, batches - 1, batches, 3 * batches + 5, std::int64_t{1} << 40}) {
    worker.set_state(scratch.parameters_file);
    worker.train(step, 1);
    const auto oracle =
        make_oracle_trainer(scratch.workload, precision, true, scratch.view(), scratch.initial);
    oracle->train(step, 1);
    EXPECT_NEAR(worker.losses(step, 1, scratch.folder / "losses").at(0), oracle->losses(step, 1).at(0), 1e-2)
        << "step " << step << ", seed " << scratch.workload.seed;
  }
}

std::vector<Captured> all_captured() {
  std::vector<Captured> all;
  for (const char* backend : kCapturedBackends)
    for (const Precision precision : kAllPrecisions) all.push_back({backend, precision});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Rows, LibtorchCapturedOnGpu, ::testing::ValuesIn(all_captured()),
                         [](const auto& row) {
                           return std::string(row.param.backend).substr(9) + "_" +
                                  std::string(to_string(row.param.precision));
                         });

}  // namespace
}  // namespace headroom
