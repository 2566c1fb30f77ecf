// Plans of cuda-resident, cuda-streamed and cuda-fused for devices that are not here: each plan fits the device, or the refusal
// says what is missing. The limits are those of an H200, an H100 with 114 multiprocessors, an A100, and a GPU for desktops.
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/workload.h"
#include "fused/trainer.h"
#include "resident/block_plan.h"
#include "resident/column_plan.h"
#include "resident/patch_plan.h"
#include "resident/plan.h"
#include "resident/slice_plan.h"
#include "resident/slice_slots.h"
#include "streamed/plan.h"

namespace headroom {
namespace {

struct Device {
  const char* name;
  int sm_count, shared_bytes;
};
constexpr Device kDevices[] = {{"132 SMs, 227 KB", 132, 232448},
                               {"114 SMs, 227 KB", 114, 232448},
                               {"108 SMs, 163 KB", 108, 166912},
                               {"84 SMs, 99 KB", 84, 101376}};
constexpr int kNetworks = 300;

/// Networks of the kind that the three strategies take, and some that they do not: 2 to 9 layers, widths up to some
/// thousand, batches up to 64, or narrow with large batches.
std::vector<Workload> networks(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto up_to = [&](int most) { return 1 + static_cast<int>(random() % static_cast<unsigned>(most)); };
  std::vector<Workload> result;
  for (const char* name :
       {"mlp-784x128x128x128x10-b32", "mlp-784x512x512x512x10-b32", "mlp-784x1024x1024x1024x10-b32",
        "mlp-784x2048x2048x2048x10-b32", "mlp-784x4096x4096x4096x10-b32", "mlp-64x64x64x64x64x16-b131072"})
    result.push_back(parse_workload_name(name));
  while (result.size() < kNetworks) {
    const bool is_narrow = random() % 3 == 0;
    const int widest = is_narrow ? 128 : up_to(3000), layers = 2 + static_cast<int>(random() % 8);
    std::string name = "mlp-" + std::to_string(up_to(1000));
    for (int layer = 1; layer < layers; ++layer) name += "x" + std::to_string(up_to(widest));
    name += "x" + std::to_string(1 + up_to(19)) + "-b" +
            std::to_string(is_narrow ? 127 + up_to(40000) : up_to(64));
    result.push_back(parse_workload_name(name));
  }
  return result;
}

/// A plan that `make` gives has been held against the device by it; counts plans and refusals.
struct Counts {
  int plans = 0, refusals = 0;
};
void try_plan(Counts& counts, const std::function<void()>& make) {
  try {
    make();
    ++counts.plans;
  } catch (const UnsupportedError& error) {
    ++counts.refusals;
    EXPECT_NE(std::string(error.what()).find_first_of("0123456789"), std::string::npos)
        << "names no number: " << error.what();
  }
}

class DevicePlans : public testing::TestWithParam<Device> {
 protected:
  const std::uint64_t seed_ = std::random_device{}();
  const std::vector<Workload> networks_ = networks(seed_);
  std::string at(const Workload& workload, Precision precision) const {
    return std::string(GetParam().name) + ", " + workload.name + " " + std::string(to_string(precision)) +
           ", seed " + std::to_string(seed_);
  }
};
INSTANTIATE_TEST_SUITE_P(Every, DevicePlans, testing::ValuesIn(kDevices),
                         [](const auto& device) { return "Sms" + std::to_string(device.param.sm_count); });

TEST_P(DevicePlans, OfResidentFitOrSayWhatIsMissing) {
  const resident::Limits limits{.sm_count = GetParam().sm_count, .shared_bytes = GetParam().shared_bytes};
  Counts counts;
  for (const Workload& workload : networks_)
    for (const Precision precision : kAllPrecisions) {
      SCOPED_TRACE(at(workload, precision));
      const auto fits = [&](int members, int bytes) {
        EXPECT_GE(members, 1);
        EXPECT_LE(members, limits.sm_count);
        EXPECT_LE(bytes, limits.shared_bytes);
      };
      for (const auto form : {resident::Form::kCluster, resident::Form::kGrid}) {
        for (const int team : {1, 2, 4})
          for (const int own : {1, 2})
            try_plan(counts, [&] {
              const auto plan = resident::make_slice_plan(workload, precision, form, limits, team, own);
              fits(resident::thread_blocks(plan), plan.shared_bytes);
            });
      }
      try_plan(counts, [&] {
        const auto plan = resident::make_patch_plan(workload, precision, limits);
        fits(plan.members, plan.shared_bytes);
      });
      try_plan(counts, [&] {
        const auto plan = resident::make_block_plan(workload, precision, limits);
        fits(plan.members, plan.shared_bytes);
      });
    }
  EXPECT_GT(counts.plans, 50);
  EXPECT_GT(counts.refusals, 100);
}

/// With every activation, loss and optimizer in turn.
TEST_P(DevicePlans, OfResidentWithRulesFitOrSayWhatIsMissing) {
  const resident::Limits limits{.sm_count = GetParam().sm_count, .shared_bytes = GetParam().shared_bytes};
  const Optimizer optimizers[] = {
      {}, {.momentum = 0.9}, {.kind = Optimizer::Kind::kAdam}, {.kind = Optimizer::Kind::kAdamW}};
  Counts counts;
  std::size_t turn = 0;
  for (Workload workload : networks_) {
    workload.model.activation = kAllActivations[turn % kAllActivations.size()];
    workload.loss = kAllLosses[turn % kAllLosses.size()];
    workload.optimizer = optimizers[turn++ % std::size(optimizers)];
    for (const Precision precision : kAllPrecisions) {
      SCOPED_TRACE(at(workload, precision));
      try_plan(counts, [&] {
        const auto plan = resident::make_column_plan(workload, precision, limits);
        EXPECT_LE(plan.shape.members * plan.shape.clusters, limits.sm_count);
        EXPECT_LE(plan.shared_bytes, limits.shared_bytes);
        EXPECT_EQ(plan.slot_bytes == 0, plan.shape.memory_slots == 0 || plan.shape.slots == 0);
      });
      Workload relu = workload;
      relu.model.activation = Activation::kRelu, relu.loss = Loss::kCrossEntropy;
      if (relu.optimizer.slots() == 0) continue;
      for (const int team : {1, 2, 4})
        try_plan(counts, [&] {
          const auto plan = resident::make_slot_plan(relu, precision, resident::Form::kGrid, limits, team);
          EXPECT_LE(resident::thread_blocks(plan.slices), limits.sm_count);
          EXPECT_LE(plan.slices.shared_bytes, limits.shared_bytes);
        });
    }
  }
  EXPECT_GT(counts.plans, 3);
  EXPECT_GT(counts.refusals, 100);
}

TEST_P(DevicePlans, OfStreamedFitOrSayWhatIsMissing) {
  const streamed::Limits limits{.sm_count = GetParam().sm_count, .shared_bytes = GetParam().shared_bytes};
  Counts counts;
  for (const Workload& workload : networks_) {
    SCOPED_TRACE(at(workload, Precision::kFp32));
    try_plan(counts, [&] {
      const auto plan = streamed::make_plan(workload, limits);
      EXPECT_GE(plan.members, 1);
      EXPECT_LE(plan.members, limits.sm_count);
    });
  }
  EXPECT_GT(counts.refusals, 50);
}

TEST_P(DevicePlans, OfFusedFitOrSayWhatIsMissing) {
  const fused::Limits limits{.sm_count = GetParam().sm_count, .shared_bytes = GetParam().shared_bytes};
  Counts counts;
  for (const Workload& workload : networks_)
    for (const Precision precision : kAllPrecisions) {
      SCOPED_TRACE(at(workload, precision));
      try_plan(counts, [&] {
        if (const auto reason = fused_refusal(workload, precision, limits)) throw UnsupportedError(*reason);
      });
    }
  EXPECT_GT(counts.plans, 4);
  EXPECT_GT(counts.refusals, 100);
}

}  // namespace
}  // namespace headroom
