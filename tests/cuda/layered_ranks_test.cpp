// cuda-layered on two devices: what one device trains with both batches, and the same bits on both.
//
// Where there is one device both ranks are on it, and a stand-in (fake_nccl.cu) adds up in the place of NCCL, which takes one rank
// of a device only.
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

/// Streams of ranks that wait for each other on one device must not share a queue. Read when CUDA begins.
[[maybe_unused]] const int kQueues = ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);

bool has_two() { return !device_missing(1); }

/// Before the first use of NCCL in this process. Where the CPU plays the GPU another stand-in is linked.
void choose_nccl() {
#ifndef HEADROOM_EMULATED
  if (!has_two()) ::setenv("HEADROOM_NCCL", fake_nccl().c_str(), 0);
#endif
}

/// The joined workload's problem, and the same in two ranks.
struct TwoRanks {
  explicit TwoRanks(const std::string& joined_name)
      : joined(joined_name, fresh_seed()), ranked(joined.workload) {
    ranked.devices = 2;
    ranked.batch_size /= 2;
    ranked.name = default_name(ranked);
  }
  std::unique_ptr<Trainer> trainer(Precision precision, std::int64_t least_bucket = kLeastBucket) const {
    choose_nccl();
    auto made = make_layered_trainer(ranked, precision, joined.dataset.train(), joined.initial, 0,
                                     {0, has_two() ? 1 : 0}, least_bucket);
    // The first launch of a graph loads it, for which it may wait until what runs on the device has ended. On one device that is the
    // other rank's step, which waits for this one: so each graph is launched a first time by itself.
    made->train(0, 1), made->train(1, 8);
    made->set_state(State::initial(joined.initial, ranked.optimizer.slots()));
    return made;
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

TEST(LayeredRanks, SmallSumsOfBucketsAreThoseOfAllAtOnce) {
  HEADROOM_NEEDS_DEVICE();
  const TwoRanks two("mlp-20x28x18x10-b16-momentum0.9");
  const auto once = two.trainer(Precision::kBf16, std::int64_t{1} << 40),
             often = two.trainer(Precision::kBf16, 1);
  EXPECT_NE(often->note().find("3 sums"), std::string::npos) << often->note();
  for (const auto& trainer : {&once, &often}) (*trainer)->train(0, 12);
  const Parameters one = once->parameters(), other = often->parameters();
  EXPECT_TRUE(std::ranges::equal(one.flat(), other.flat()));
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

// On one device ranks with kernels that fill it cannot wait for each other. So both ranks have the same samples, and a sum is
// twice what one has.
TEST(LayeredRanks, WideProductsLeaveGradientsForTheSum) {
  HEADROOM_NEEDS_DEVICE();
  if (!has_two()) ::setenv("FAKE_NCCL", "alike", 1);
  // Wide products are taken where they are half as many tiles as there are multiprocessors: the shortened test has few of both.
  const bool few = is_shortened();
  for (const std::string& name :
       {std::string(few ? "mlp-72x256x256x10-b1024" : "mlp-784x1024x1024x10-b8192"),
        std::string(few ? "mlp-72x256x256x32-b1024-adam" : "mlp-784x1024x1024x256-b8192-adam")}) {
    TwoRanks two(name);
    two.joined.workload.optimizer.learning_rate = two.ranked.optimizer.learning_rate = 0.1;
    Dataset& data = two.joined.dataset;
    const auto half = static_cast<std::ptrdiff_t>(data.train_labels.size() / 2);
    ASSERT_EQ(half, two.ranked.batch_size);
    const std::ptrdiff_t features = half * two.ranked.inputs();
    std::copy_n(data.train_labels.begin(), half, data.train_labels.begin() + half);
    std::copy_n(data.train_features.begin(), features, data.train_features.begin() + features);
    const auto together =
        make_layered_trainer(two.joined.workload, Precision::kBf16, data.train(), two.joined.initial, 0);
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
  ::unsetenv("FAKE_NCCL");
}

}  // namespace
}  // namespace headroom
