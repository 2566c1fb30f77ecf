// Parts of a simulation, from files and added.
#include "bounds_counts.h"

#include <gtest/gtest.h>

#include "json/reader.h"

namespace headroom {
namespace {

BoundsCounts some_counts(std::uint64_t seed, std::int64_t first, std::int64_t count) {
  BoundsCounts counts{.copies = 16, .ranges = {{seed, first, count}}};
  Counts of_class{.networks = count, .passed = count - 2, .failed = 1, .cannot_be_checked = 1};
  of_class.faults["NaN"] = {.caught = count};
  of_class.faults["momentum"] = {.caught = 2, .missed = 3, .cannot_be_checked = 4, .invisible = 5};
  counts.classes = {{"fp32 relu mse momentum", of_class}, {"bf16 relu mse adam", {}}};
  return counts;
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
  const Counts& of_class = total.classes.front().second;
  EXPECT_EQ(of_class.networks, 60);
  EXPECT_EQ(of_class.failed, 3);
  EXPECT_EQ(of_class.faults.at("momentum").missed, 9);
  EXPECT_EQ(of_class.faults.at("NaN").caught, 60);
}

TEST(BoundsCounts, ANetworkIsNotCountedTwice) {
  BoundsCounts total = some_counts(1, 0, 30);
  EXPECT_THROW(total.add(some_counts(1, 29, 5)), std::invalid_argument);
  EXPECT_EQ(total.networks(), 30);
}

TEST(BoundsCounts, OtherClassesOrCopiesAreNotAdded) {
  BoundsCounts total = some_counts(1, 0, 30), other = some_counts(1, 30, 30);
  other.classes.pop_back();
  EXPECT_THROW(total.add(other), std::invalid_argument);
  other = some_counts(1, 30, 30);
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
  SimulatedClass simulated{.precision = Precision::kBf16, .contract = Contract::kAutocast};
  const auto of_range = [&](std::int64_t first, std::int64_t count) {
    BoundsCounts counts{.copies = 16, .ranges = {{5, first, count}}};
    counts.classes = {{simulated.name(), simulate(simulated, {.first = first, .count = count, .seed = 5})}};
    return counts;
  };
  BoundsCounts parts = of_range(3, 2);
  parts.add(of_range(5, 2));
  EXPECT_EQ(to_json(parts).substr(to_json(parts).find("classes")),
            to_json(of_range(3, 4)).substr(to_json(of_range(3, 4)).find("classes")));
}

}  // namespace
}  // namespace headroom
