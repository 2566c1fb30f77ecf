// Calibration: exchanges deliver every value, in every shape that is timed, and rates are of a possible size.
#include "calibration/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <stdexcept>

#include "calibration/exchanges.h"
#include "calibration/launches.h"
#include "calibration/rates.h"
#include "device/device.h"

#define HEADROOM_NEEDS_DEVICE() \
  if (const auto missing = device_missing(0)) GTEST_SKIP() << *missing
#define HEADROOM_NEEDS_CLUSTERS() \
  HEADROOM_NEEDS_DEVICE();        \
  if (!calibration::has_clusters(0)) GTEST_SKIP() << "no thread block clusters before sm_90"

namespace headroom {
namespace {

using namespace calibration;

// Every combination, after each number of exchanges.
template <class Gather>
void expect_delivered(Gather gather, const std::vector<int>& blocks, const std::vector<int>& columns,
                      const std::vector<int>& threads, const std::vector<int>& repeats) {
  use_device(0);
  Stream stream;
  for (const int block_count : blocks) {
    for (const int column_count : columns) {
      for (const int thread_count : threads) {
        for (const int count : repeats) {
          const GatherShape shape{block_count, column_count, thread_count};
          EXPECT_EQ(gather(stream, shape, count).values, expected_gather(shape, count))
              << block_count << " blocks, " << column_count << " columns, " << thread_count << " threads, "
              << count << " exchanges";
        }
      }
    }
  }
}

TEST(Calibration, ExchangesInAClusterDeliverEveryValue) {
  HEADROOM_NEEDS_CLUSTERS();
  expect_delivered(cluster_gather, {2, 4, 8, 16}, {16, 128}, {32, 96, 256}, {1, 2, 3, 4, 11, 500});
}

TEST(Calibration, ExchangesOverTheChipDeliverEveryValue) {
  HEADROOM_NEEDS_DEVICE();
  expect_delivered(chip_gather, {2, 8, 32}, {8, 40, 256}, {32, 96, 512}, {1, 2, 3, 11, 500});
}

TEST(Calibration, SmallExchangesDeliverEveryValue) {
  HEADROOM_NEEDS_DEVICE();
  expect_delivered(chip_gather, {4}, {8}, {32}, {3});
  if (has_clusters(0)) expect_delivered(cluster_gather, {2}, {8}, {32}, {4});
}

TEST(Calibration, SmallBarriersEnd) {
  HEADROOM_NEEDS_DEVICE();
  use_device(0);
  Stream stream;
  EXPECT_GT(chip_barrier_seconds(stream, 4, 5), 0);
  if (!has_clusters(0)) return;
  EXPECT_GT(cluster_barrier_seconds(stream, 2, 5), 0);
  EXPECT_GT(remote_read_seconds(stream, 5), 0);
}

TEST(Calibration, AnExchangeChangesWhatIsDelivered) {
  const GatherShape shape{4, 16, 32};
  EXPECT_NE(expected_gather(shape, 1), expected_gather(shape, 2));
  EXPECT_EQ(expected_gather(shape, 3).size(), 4u * 16 * 16);
}

TEST(Calibration, ShapesThatDoNotFitAreRefused) {
  HEADROOM_NEEDS_DEVICE();
  use_device(0);
  Stream stream;
  EXPECT_THROW(cluster_gather(stream, {3, 96, 256}, 1), std::invalid_argument);
  EXPECT_THROW(cluster_gather(stream, {32, 128, 256}, 1), std::invalid_argument);
  EXPECT_THROW(cluster_gather(stream, {8, 1024, 128}, 1), std::invalid_argument);
  EXPECT_THROW(chip_gather(stream, {8, 128, 100}, 1), std::invalid_argument);
  EXPECT_THROW(chip_gather(stream, {7, 128, 256}, 1), std::invalid_argument);
  EXPECT_THROW(chip_gather(stream, {8, 128, 2048}, 1), std::invalid_argument);
}

TEST(Calibration, RatesAreOfAPossibleSize) {
  HEADROOM_NEEDS_DEVICE();
  const Calibration rates = calibrate_device(0);
  for (const auto& [name, rate] : rates) {
    EXPECT_TRUE(std::isfinite(rate.value) && rate.value > 0) << name;
    EXPECT_FALSE(rate.unit.empty() || rate.how.empty()) << name;
    std::ostringstream text;
    text << rate.value << ' ' << rate.unit << ": " << rate.how;
    RecordProperty(name, text.str());
  }
  // What is contained in something cannot take longer than it, and one SM reads less than all of them.
  EXPECT_LT(rates.at("graph_node").value, rates.at("graph_relaunch").value);
  EXPECT_LT(rates.at("one_sm_read").value, rates.at("read").value);
  EXPECT_GT(rates.at("copy").value, 0.5 * rates.at("read").value);
  if (has_clusters(0)) {
    EXPECT_LT(rates.at("cluster_barrier").value, rates.at("chip_barrier").value);
    EXPECT_LT(rates.at("remote_read").value, rates.at("cluster_gather_128").value);
    EXPECT_LT(rates.at("cluster_gather_128").value, rates.at("chip_gather_1024").value);
  }
}

}  // namespace
}  // namespace headroom
