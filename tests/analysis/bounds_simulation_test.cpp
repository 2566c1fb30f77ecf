// A random network of every class: the whole simulation is headroom-simulate-bounds.
#include "bounds_simulation.h"

#include <gtest/gtest.h>

#include <mutex>
#include <random>

#include "core/parallel.h"

namespace headroom {
namespace {

TEST(BoundsSimulation, CorrectCodePassesAndEachFaultIsCaughtInEveryPrecisionActivationLossAndOptimizer) {
  constexpr std::int64_t kNetworks = 1;
  const std::vector<SimulatedClass> classes = all_classes();
  const std::uint64_t seed = std::random_device()();
  Counts counts;
  std::mutex mutex;
  std::string wrong;
  parallel_for(std::ssize(classes), 1, [&](std::int64_t which, std::int64_t) {
    SimulatedNetworks networks{.count = kNetworks, .seed = seed};
    networks.tell = [&](const std::string& text) {
      const std::lock_guard lock(mutex);
      wrong += text + "\n";
    };
    const Counts found = simulate(classes[static_cast<std::size_t>(which)], networks);
    const std::lock_guard lock(mutex);
    counts.add(found);
  });
  SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + wrong);
  EXPECT_GE(counts.networks, kNetworks * std::ssize(classes) - 3);  // some may diverge
  // Up to one of a thousand may be judged wrongly, so of some hundreds one or two.
  EXPECT_LE(counts.failed, 3);
  EXPECT_LE(counts.free_steps.failed, 2);
  EXPECT_GT(counts.passed, 9 * counts.networks / 10 - 20);
  for (const auto& [name, fault] : counts.faults) {
    EXPECT_LE(fault.missed, 2) << name;
    EXPECT_GT(fault.caught,
              7 * (fault.caught + fault.missed + fault.cannot_be_checked + fault.invisible) / 10)
        << name;
  }
  EXPECT_EQ(counts.faults.size(), 16u);
}

// Its loss is 1e65 at the last step, while its steps still fit in fp32.
TEST(BoundsSimulation, LeavesOutANetworkWhoseLossIsBeyondFp32) {
  const SimulatedClass diverging{Precision::kBf16,        Contract::kAutocast,   Activation::kTanh,
                                 Loss::kMeanSquaredError, Optimizer::Kind::kSgd, false};
  EXPECT_EQ(simulate(diverging, {.first = 1521, .count = 1}).networks, 0);
}

}  // namespace
}  // namespace headroom
