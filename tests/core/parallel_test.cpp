// The loop over all cores.
#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace headroom {
namespace {

class Parallel : public ::testing::Test {
 protected:
  void SetUp() override { set_parallel_threads(4); }
  void TearDown() override { set_parallel_threads(0); }
};

TEST_F(Parallel, VisitsEveryItemOnce) {
  for (std::int64_t count : {0, 1, 7, 1000}) {
    for (std::int64_t chunk : {1, 3, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      parallel_for(count, chunk, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_LE(end - begin, chunk);
        for (std::int64_t i = begin; i < end; ++i) ++visits[i];
      });
      for (const auto& visit : visits) EXPECT_EQ(visit, 1);
    }
  }
}

TEST_F(Parallel, ManyShortLoopsFinish) {
  std::atomic<std::int64_t> sum{0};
  for (int i = 0; i < 20000; ++i) parallel_for(8, 1, [&](std::int64_t begin, std::int64_t) { sum += begin; });
  EXPECT_EQ(sum, 20000 * 28);
}

TEST_F(Parallel, NestedLoopsAndSeveralCallersFinish) {
  std::atomic<int> count{0};
  const auto work = [&] {
    parallel_for(10, 1, [&](std::int64_t, std::int64_t) {
      parallel_for(10, 1, [&](std::int64_t, std::int64_t) { ++count; });
    });
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(count, 200);
}

TEST_F(Parallel, ThrowsWhatABodyThrewAndGoesOnWorking) {
  const auto fail = [](std::int64_t begin, std::int64_t) {
    if (begin == 50) throw std::runtime_error("fifty");
  };
  EXPECT_THROW(parallel_for(100, 1, fail), std::runtime_error);
  int visits = 0;
  set_parallel_threads(1);
  parallel_for(5, 1, [&](std::int64_t, std::int64_t) { ++visits; });
  EXPECT_EQ(visits, 5);
}

}  // namespace
}  // namespace headroom
