// cuda-layered on two devices: what one device trains with both batches, and the same bits on both.
//
// Where there is one device both ranks are on it, and a stand-in (fake_nccl.cu) adds up in the place of NCCL, which takes one rank
// of a device only. It does not let ranks wait for each other, so both have the same samples.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "device/stream.h"
#include "fake_nccl.h"
#include "gpu_test.h"
#include "layered/trainer.h"
#include "ranks/nccl.h"
#include "step_check.h"

namespace headroom {
namespace {

bool has_two() { return !device_missing(1); }

/// Where the CPU plays the GPU another stand-in is linked, whose ranks meet.
bool ranks_meet() {
#ifdef HEADROOM_EMULATED
  return true;
#else
  return has_two();
#endif
}

/// Rows of the second rank become those of the first, in each joined batch of `rows` of `columns` values.
template <class Value>
void repeat_the_first_rank(std::vector<Value>& values, std::ptrdiff_t rows, std::ptrdiff_t columns) {
  const std::ptrdiff_t half = rows / 2 * columns;
  for (auto batch = values.begin(); values.end() - batch >= 2 * half && half > 0; batch += 2 * half)
    std::copy_n(batch, half, batch + half);
}

/// The joined workload's problem, and the same in two ranks.
struct TwoRanks {
  explicit TwoRanks(const std::string& joined_name)
      : joined(joined_name, fresh_seed()), ranked(joined.workload) {
    ranked.devices = 2;
    ranked.batch_size /= 2;
    ranked.name = default_name(ranked);
    if (ranks_meet()) return;
    ::setenv("HEADROOM_NCCL", fake_nccl().c_str(), 0);  // before the first use of NCCL in this process
    Dataset& data = joined.dataset;
    const int rows = joined.workload.batch_size;
    repeat_the_first_rank(data.train_features, rows, ranked.inputs());
    repeat_the_first_rank(data.train_labels, rows, 1);
    repeat_the_first_rank(data.train_targets, rows, ranked.outputs());
  }
  std::unique_ptr<Trainer> trainer(Precision precision) const {
    return make_layered_trainer(ranked, precision, joined.dataset.train(), joined.initial, 0,
                                {0, has_two() ? 1 : 0});
  }
  NamedProblem joined;
  Workload ranked;
};

TEST(LayeredRanks, SmallTwoDevicesTrainWhatOneTrainsWithBothBatches) {
  HEADROOM_NEEDS_DEVICE();
  for (const std::string name :
       {"mlp-33x40x24x10-b16", "mlp-20x24x10-b16-tanh-mse-adam", "mlp-20x24x3-b16-gelu-bce-momentum0.9"})
    for (const Precision precision : kAllPrecisions) {
      const TwoRanks two(name);
      check_against_oracle(two.joined, precision, *two.trainer(precision), {0, 1, 17, 100}, 8);
    }
}

TEST(LayeredRanks, SmallTrainingGoesOnFromAnyState) {
  HEADROOM_NEEDS_DEVICE();
  const TwoRanks two("mlp-20x24x10-b16-tanh-mse-adam");
  const auto trainer = two.trainer(Precision::kFp32);
  trainer->train(0, 20);
  const State state = trainer->state();
  trainer->train(20, 13);
  const Parameters straight = trainer->parameters();
  trainer->set_state(state);
  trainer->train(20, 13);
  EXPECT_TRUE(std::ranges::equal(straight.flat(), trainer->parameters().flat()));
}

#ifndef HEADROOM_EMULATED
// All of NCCL that one device can show: it is found, makes a communicator, and can be captured. Of one rank a sum is what it has.
TEST(Nccl, ASumIsCapturedAndLaunchedAgain) {
  HEADROOM_NEEDS_DEVICE();
  const char* given = std::getenv("HEADROOM_NCCL");
  const std::string before = given == nullptr ? "" : given;
  ::unsetenv("HEADROOM_NCCL");  // it may name the stand-in
  const std::vector<std::filesystem::path> places = ranks::Nccl::places();
  if (!before.empty()) ::setenv("HEADROOM_NCCL", before.c_str(), 1);
  std::optional<ranks::Nccl> nccl;
  for (const std::filesystem::path& place : places) {
    try {
      if (!nccl) nccl = ranks::Nccl::load(place);
    } catch (const UnsupportedError&) {
      continue;
    }
  }
  if (!nccl) GTEST_SKIP() << "no NCCL here";
  const ranks::Communicators communicators({0}, *nccl);
  use_device(0);
  Stream stream;
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.5f);
  DeviceBuffer<float> buffer(1000);
  buffer.copy_from(values);
  communicators.all_reduce(0, buffer.data(), 1000, stream.get());
  stream.synchronize();
  Graph graph =
      Graph::capture(stream, [&] { communicators.all_reduce(0, buffer.data(), 1000, stream.get()); });
  for (int i = 0; i < 3; ++i) graph.launch(stream);
  stream.synchronize();
  EXPECT_EQ(buffer.to_host(), values);
  std::printf("NCCL %s from %s\n", communicators.version().c_str(), nccl->file.c_str());
}
#endif

/// Of what training adds to `initial`, for each tensor; NaN if anything is NaN.
double largest_difference(const Parameters& initial, const Parameters& found, const Parameters& expected) {
  double largest = 0;
  for (const TensorRange& tensor : tensor_ranges(initial.widths())) {
    double difference = 0, size = 0;
    for (std::int64_t i = tensor.begin; i < tensor.begin + tensor.size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double change = static_cast<double>(expected.flat()[at]) - initial.flat()[at];
      difference += std::pow(static_cast<double>(found.flat()[at]) - expected.flat()[at], 2);
      size += change * change;
    }
    largest = std::max(largest, std::sqrt(difference / size));
  }
  return largest;
}

TEST(LayeredRanks, WideProductsLeaveGradientsForTheSum) {
  HEADROOM_NEEDS_DEVICE();
  // Wide products are taken where they are half as many tiles as there are multiprocessors: the shortened test has few of both.
  const std::vector<std::string> names =
      is_shortened()
          ? std::vector<std::string>{"mlp-72x256x256x10-b1024"}
          : std::vector<std::string>{"mlp-784x1024x1024x10-b8192", "mlp-784x1024x1024x256-b8192-adam"};
  for (const std::string& name : names) {
    TwoRanks two(name);
    two.joined.workload.optimizer.learning_rate = two.ranked.optimizer.learning_rate = 0.1;
    const auto together = make_layered_trainer(two.joined.workload, Precision::kBf16,
                                               two.joined.dataset.train(), two.joined.initial, 0);
    const auto ranks = two.trainer(Precision::kBf16);
    EXPECT_NE(ranks->note().find("wide tiles"), std::string::npos) << ranks->note();
    // The first graph has one step; a second step shows that nothing is left of the first's gradients.
    for (const int step : {0, 1}) {
      together->train(step, 1), ranks->train(step, 1);
      const float loss = together->losses(step, 1)[0];
      EXPECT_NEAR(ranks->losses(step, 1)[0], loss, 1e-4 * std::fabs(loss)) << name;
      const double difference =
          largest_difference(two.joined.initial, ranks->parameters(), together->parameters());
      // From slots of zeros Adam moves a parameter by its learning rate whichever way a gradient near zero points.
      const double bound = two.ranked.optimizer.slots() > 0 ? 5e-2 : 1e-3;
      EXPECT_FALSE(!(difference <= bound)) << difference << ", " << name << ", step " << step;
      std::printf("%s step %d: %.1e apart (%s)\n", name.c_str(), step, difference, ranks->note().c_str());
    }
  }
}

}  // namespace
}  // namespace headroom
