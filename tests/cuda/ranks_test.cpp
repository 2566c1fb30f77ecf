// Ranks without a device: what their trainer makes of them, whose samples are whose, and where NCCL is looked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/error.h"
#include "fake_nccl.h"
#include "ranks/nccl.h"
#include "ranks/share.h"
#include "ranks/trainer.h"

namespace headroom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Workload two_ranks() { return parse_workload_name("mlp-2x3-b2-g2"); }

/// Its losses are its rank; a rank may do what it likes when it trains.
class MadeUpTrainer : public Trainer {
 public:
  explicit MadeUpTrainer(int rank, std::function<void()> trains = nullptr)
      : rank_(rank), trains_(std::move(trains)), parameters_(two_ranks().model.widths) {}
  Timing train(std::int64_t, std::int64_t) override {
    if (trains_) trains_();
    return {1.0 + rank_, 0, 0};
  }
  std::vector<float> losses(std::int64_t, std::int64_t count) override {
    return std::vector<float>(static_cast<std::size_t>(count), static_cast<float>(rank_));
  }
  Parameters parameters() override { return parameters_; }
  void set_parameters(const Parameters& parameters) override {
    parameters_ = parameters;
    parameters_.bias(0)[1] += drift;
  }
  float drift = 0;

 private:
  int rank_;
  std::function<void()> trains_;
  Parameters parameters_;
};

template <class Error>
std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Ranks, LossesAreTheMeanAndTimesTheLongest) {
  const auto trainer = ranks::make_trainer(
      two_ranks(), "b", [](int rank) { return ranks::Rank{std::make_unique<MadeUpTrainer>(rank), nullptr}; });
  EXPECT_EQ(trainer->train(0, 1).device_seconds, 2.0);
  EXPECT_THAT(trainer->losses(0, 2), ElementsAre(0.5f, 0.5f));
}

TEST(Ranks, EachIsMadeAndTrainsInAThreadOfItsOwnBesideTheOthers) {
  std::atomic<int> here = 0;
  // Would never return one rank after the other.
  const auto meet = [&] {
    ++here;
    while (here % 2 != 0) std::this_thread::yield();
  };
  std::vector<std::thread::id> made(2), trained(2), begun(2);
  const auto trainer = ranks::make_trainer(two_ranks(), "b", [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    made[at] = std::this_thread::get_id();
    const auto train = [&, at] {
      trained[at] = std::this_thread::get_id();
      meet();
    };
    return ranks::Rank{std::make_unique<MadeUpTrainer>(rank, train), [&, at] {
                         begun[at] = std::this_thread::get_id();
                         meet();
                       }};
  });
  trainer->train(0, 1);
  EXPECT_EQ(made, trained);
  EXPECT_EQ(made, begun);
  EXPECT_NE(made[0], made[1]);
}

TEST(Ranks, ParametersThatDifferAreAnErrorThatSaysWhere) {
  const auto trainer = ranks::make_trainer(two_ranks(), "b", [](int rank) {
    auto one = std::make_unique<MadeUpTrainer>(rank);
    one->drift = rank == 1 ? 0.5f : 0.0f;
    return ranks::Rank{std::move(one), nullptr};
  });
  EXPECT_NO_THROW(trainer->parameters());
  trainer->set_parameters(Parameters(two_ranks().model.widths));
  EXPECT_THAT(message_of<std::runtime_error>([&] { trainer->parameters(); }),
              HasSubstr("b: rank 1 differs from rank 0 in bias1[1]: 0.5"));
}

TEST(Ranks, WhatARankThatFailsLeavesWaitingIsGivenUp) {
  std::atomic<bool> given_up = false;
  std::atomic<int> times = 0;
  const auto trainer = ranks::make_trainer(
      two_ranks(), "b",
      [&](int rank) {
        return ranks::Rank{std::make_unique<MadeUpTrainer>(rank,
                                                           [&, rank] {
                                                             if (rank == 1) throw std::runtime_error("lost");
                                                             while (!given_up) std::this_thread::yield();
                                                           }),
                           nullptr};
      },
      [&] { given_up = true, ++times; });
  EXPECT_EQ(message_of<std::runtime_error>([&] { trainer->train(0, 1); }), "b: rank 1: lost");
  EXPECT_EQ(message_of<std::runtime_error>([&] { trainer->train(1, 1); }), "b: rank 1: lost");
  EXPECT_EQ(times, 1);
}

TEST(Ranks, ARankThatCannotBeMadeKeepsItsKindOfError) {
  const auto make = [](int rank) -> ranks::Rank {
    if (rank == 1) throw OutOfMemoryError("1 GB is free");
    return {std::make_unique<MadeUpTrainer>(rank), [] { FAIL() << "rank 1 is not there"; }};
  };
  EXPECT_EQ(message_of<OutOfMemoryError>([&] { ranks::make_trainer(two_ranks(), "b", make); }),
            "b: rank 1: 1 GB is free");
}

TEST(Ranks, AShareIsTheRanksPartOfEachJoinedBatch) {
  std::vector<float> features;
  std::vector<std::int32_t> labels;
  for (int sample = 0; sample < 9; ++sample) {  // two joined batches of four, and one that is left out
    features.insert(features.end(), {10.0f * sample, 10.0f * sample + 1});
    labels.push_back(sample);
  }
  const DatasetView data{features.data(), labels.data(), nullptr, 9, 2};
  const ranks::Share share(two_ranks(), data, 1);
  const DatasetView view = share.view();
  EXPECT_EQ(view.samples, 4);
  EXPECT_THAT(std::vector(view.labels, view.labels + 4), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(std::vector(view.features, view.features + 8), ElementsAre(20, 21, 30, 31, 60, 61, 70, 71));
  EXPECT_EQ(view.targets, nullptr);
}

TEST(Nccl, IsLookedForBesideTorchAndByTheLoader) {
  ::unsetenv("HEADROOM_NCCL");
  ::setenv("HEADROOM_TORCH_LIBRARY_PATH", "/one:/two", 1);
  ::setenv("HEADROOM_PYTHON", "/nowhere/bin/python", 1);
  EXPECT_THAT(ranks::Nccl::places(), ElementsAre("/one/libnccl.so.2", "/two/libnccl.so.2", "libnccl.so.2"));
  ::setenv("HEADROOM_NCCL", "/mine.so", 1);
  EXPECT_THAT(ranks::Nccl::places(), ElementsAre("/mine.so"));
}

TEST(Nccl, AFileThatIsNoNcclIsRefusedByName) {
  EXPECT_THAT(message_of<UnsupportedError>([] { ranks::Nccl::load("/nowhere/libnccl.so.2"); }),
              HasSubstr("/nowhere/libnccl.so.2"));
  EXPECT_THAT(message_of<UnsupportedError>([] { ranks::Nccl::load("libm.so.6"); }),
              HasSubstr("libm.so.6 has no ncclGetVersion"));
}

TEST(Nccl, ALibraryIsLoadedWithMulticastOffAndItsErrorsAreItsOwnWords) {
  ::setenv("NCCL_NVLS_ENABLE", "1", 1);
  const ranks::Nccl nccl = ranks::Nccl::load(fake_nccl());
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "0");
  int version = 0;
  EXPECT_EQ(nccl.get_version(&version), 0);
  EXPECT_EQ(ranks::version_text(version), "1.0.0");
  EXPECT_NO_THROW(nccl.check(0, "ncclAllReduce"));
  // The stand-in takes eight ranks.
  EXPECT_EQ(message_of<std::runtime_error>([&] { ranks::Communicators(std::vector<int>(9), nccl); }),
            "ncclCommInitAll: too many values or ranks");
}

TEST(Nccl, VersionsAreWrittenWithDots) {
  EXPECT_EQ(ranks::version_text(22809), "2.28.9");
  EXPECT_EQ(ranks::version_text(23100), "2.31.0");
}

}  // namespace
}  // namespace headroom
