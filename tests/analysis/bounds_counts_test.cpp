// Parts of a simulation, from files and added.
#include "bounds_counts.h"

#include <gtest/gtest.h>

#include "json/reader.h"

namespace headroom {
namespace {

BoundsCounts some_counts(std::uint64_t seed, std::int64_t first, std::int64_t count) {
  Counts of_class;
  of_class.networks = count;
  of_class.passed = count - 2;
  of_class.failed = of_class.cannot_be_checked = 1;
  of_class.faults["NaN"] = {.caught = count};
  of_class.faults["momentum"] = {.caught = 2, .missed = 3, .cannot_be_checked = 4, .invisible = 5};
  of_class.free_steps = {.passed = count - 1, .failed = 1};
  const std::vector<NetworkRange> ranges = {{seed, first, count}};
  return {.copies = 16,
          .classes = {{"fp32 relu mse momentum", ranges, of_class}, {"bf16 relu mse adam", ranges}}};
}

TEST(BoundsCounts, AreTheSameFromAFile) {
  const std::string text = to_json(some_counts(7, 10, 30));
  EXPECT_EQ(to_json(counts_from_json(text, "a.json")), text);
}

TEST(BoundsCounts, OfTwoPartsAreAdded) {
  BoundsCounts total = some_counts(1, 0, 30);
  total.add(some_counts(1, 30, 20));
  total.add(some_counts(2, 0, 10));
  EXPECT_EQ(total.networks(), 60);
  const Counts& of_class = total.classes.front().counts;
  EXPECT_EQ(of_class.networks, 60);
  EXPECT_EQ(of_class.failed, 3);
  EXPECT_EQ(of_class.free_steps.failed, 3);
  EXPECT_EQ(of_class.faults.at("momentum").missed, 9);
  EXPECT_EQ(of_class.faults.at("NaN").caught, 60);
}

TEST(BoundsCounts, RangesThatFollowEachOtherAreOne) {
  BoundsCounts total = some_counts(1, 30, 20);
  total.add(some_counts(1, 60, 10));
  total.add(some_counts(2, 50, 10));
  total.add(some_counts(1, 0, 30));
  const std::vector<NetworkRange>& ranges = total.classes.front().ranges;
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[0].first, 0);
  EXPECT_EQ(ranges[0].count, 50);
  EXPECT_EQ(ranges[1].first, 60);
  EXPECT_EQ(ranges[2].seed, 2u);
}

TEST(BoundsCounts, ANetworkIsNotCountedTwice) {
  BoundsCounts total = some_counts(1, 0, 30);
  EXPECT_THROW(total.add(some_counts(1, 29, 5)), std::invalid_argument);
  EXPECT_EQ(total.networks(), 30);
}

TEST(BoundsCounts, OfOtherClassesStandBeside) {
  BoundsCounts total = some_counts(1, 0, 30), other = some_counts(1, 0, 20);
  total.classes.pop_back();
  other.classes.erase(other.classes.begin());
  total.add(other);
  ASSERT_EQ(total.classes.size(), 2u);
  EXPECT_EQ(total.classes[0].networks(), 30);
  EXPECT_EQ(total.networks(), 20);
}

TEST(BoundsCounts, OfAnotherNumberOfCopiesAreNotAdded) {
  BoundsCounts total = some_counts(1, 0, 30), other = some_counts(1, 30, 30);
  other.copies = 8;
  EXPECT_THROW(total.add(other), std::invalid_argument);
}

TEST(BoundsCounts, OfABrokenFileAreRefusedWithItsName) {
  std::string text = to_json(some_counts(7, 10, 30));
  text.replace(text.find("\"missed\":3"), 10, "\"missed\":-1");
  try {
    counts_from_json(text, "a.json");
    FAIL();
  } catch (const JsonError& error) {
    EXPECT_NE(std::string(error.what()).find("a.json"), std::string::npos) << error.what();
  }
}

TEST(BoundsSimulation, ANetworkFollowsFromSeedAndNumberAlone) {
  const SimulatedClass simulated{.precision = Precision::kBf16, .contract = Contract::kAutocast};
  const auto of_range = [&](std::int64_t first, std::int64_t count) {
    return simulate(simulated, {.first = first, .count = count, .seed = 5});
  };
  Counts parts = of_range(3, 2);
  parts.add(of_range(5, 2));
  const auto text = [](const Counts& counts) {
    return to_json({.copies = 16, .classes = {{"", {}, counts}}});
  };
  EXPECT_EQ(text(parts), text(of_range(3, 4)));
}

}  // namespace
}  // namespace headroom
