// The machine that the CPU plays: what it does, and that it finds what is planted.
#include "machine.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace headroom::emulated {
namespace {

/// The fault that a launch ends with; nothing if it ends well.
std::string fault_of(const Shape& shape, const std::function<void()>& thread) {
  try {
    run(shape, thread);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return {};
}
testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "'" << text << "' does not say '" << part << "'";
}

constexpr std::uint32_t kBarrier = 0, kData = 64;
constexpr Shape kPair = {
    .blocks = 2, .threads = 64, .cluster = 2, .cooperative = false, .shared_bytes = 1024};

/// Block 0 sends a value to every thread of block 1, which waits for it, or forgets to.
std::vector<int> values_received(bool waits) {
  std::vector<int> received(64);
  run(kPair, [&] {
    const bool sends = place().block == 0, leads = place().thread == 0;
    if (leads) counted_init(shared_address(shared_memory()) + kBarrier, 1);
    cluster_barrier();
    const std::uint32_t barrier = shared_address_in(kBarrier, 1);
    if (leads && sends) {
      for (std::uint32_t i = 0; i < 16; ++i)
        send_later(shared_address_in(kData + 16 * i, 1), std::array{4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3},
                   barrier);
    }
    if (leads && !sends) counted_expect(shared_address_in(kBarrier, 1), 256);
    if (!sends) {
      while (waits && !counted_done(barrier, 0)) {
      }
      std::memcpy(&received[place().thread], shared_memory() + kData + 4 * place().thread, 4);
    }
    cluster_barrier();
    while (!sends && !counted_done(barrier, 0)) {
    }
    cluster_barrier();
  });
  return received;
}
TEST(EmulatedMachine, WhatIsSentHasLandedBehindTheBarrierThatCountsIt) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    seed_schedule(seed);
    const auto values = values_received(true);
    for (int i = 0; i < 64; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], i) << "seed " << seed;
  }
}
TEST(EmulatedMachine, ShowsAWaitThatIsMissing) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    seed_schedule(seed);
    const auto values = values_received(false);
    for (int i = 0; i < 64; ++i) wrong += values[static_cast<std::size_t>(i)] != i;
  }
  EXPECT_GT(wrong, 0);
}

/// Block 0 copies to itself and to block 2, but not to block 1.
TEST(EmulatedMachine, ACopyToSeveralBlocksIsCountedByTheBarrierOfEach) {
  alignas(16) static const std::array<int, 4> source{1, 2, 3, 4};
  constexpr Shape three = {
      .blocks = 3, .threads = 32, .cluster = 3, .cooperative = false, .shared_bytes = 1024};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    seed_schedule(seed);
    std::array<int, 3> received{};
    run(three, [&] {
      const unsigned block = place().block;
      const std::uint32_t barrier = shared_address_in(kBarrier, block);
      int* data = reinterpret_cast<int*>(shared_memory() + kData);
      if (place().thread == 0) {
        data[3] = 0;
        counted_init(barrier, 1);
      }
      cluster_barrier();
      if (place().thread == 0 && block == 0)
        copy_later_to(0b101, shared_address(data), source.data(), 16, barrier);
      if (place().thread == 0 && block != 1) {
        counted_expect(barrier, 16);
        while (!counted_done(barrier, 0)) {
        }
      }
      cluster_barrier();
      if (place().thread == 0) received[block] = data[3];
    });
    EXPECT_EQ(received, (std::array{4, 0, 4})) << "seed " << seed;
  }
}
/// A value is put off to be read, and then changed: behind a wait, or too soon.
int times_read_too_late(bool waits) {
  int too_late = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    seed_schedule(seed);
    int value = 1, read = 0;
    run({.threads = 32}, [&] {
      const auto of_warp = [](const auto& work) {
        int mine = 0;
        with_warp("product", mine, [&](int* const*) { work(); });
      };
      of_warp([&] {
        warp_later([&] { read = value; });
        commit_warp_work();
      });
      if (waits) of_warp([] { wait_for_warp_work(0); });
      of_warp([&] { value = 2; });
      of_warp([] { wait_for_warp_work(0); });
    });
    too_late += read != 1;
  }
  return too_late;
}
TEST(EmulatedMachine, WhatAWarpPutsOffIsDoneBehindTheWaitAtTheLatest) {
  EXPECT_EQ(times_read_too_late(true), 0);
  EXPECT_GT(times_read_too_late(false), 0);
}
TEST(EmulatedMachine, AWarpsWorkIsDoneInItsOrder) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    seed_schedule(seed);
    std::vector<int> done, done_behind_the_first_wait;
    run({.threads = 32}, [&] {
      int mine = 0;
      with_warp("products", mine, [&](int* const*) {
        for (int i = 0; i < 6; ++i) {
          warp_later([&done, i] { done.push_back(i); });
          if (i % 2 == 1) commit_warp_work();
        }
        wait_for_warp_work(1);
        done_behind_the_first_wait = done;
        wait_for_warp_work(0);
      });
    });
    EXPECT_EQ(done, (std::vector{0, 1, 2, 3, 4, 5})) << "seed " << seed;
    EXPECT_GE(done_behind_the_first_wait.size(), 4u) << "seed " << seed;
  }
}

/// What lies at the destination and in shared memory, which is written anew behind a wait for the store's reading or too soon.
int times_stored_wrong(bool waits) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    seed_schedule(seed);
    alignas(16) std::array<int, 4> stored{};
    run({.threads = 1, .shared_bytes = 64}, [&] {
      int* source = reinterpret_cast<int*>(shared_memory());
      source[0] = 1;
      store_in_group(stored.data(), shared_address(source), 16);
      commit_stores();
      if (waits) wait_until_stores_have_read(0);
      source[0] = 2;
      wait_until_stores_have_read(0);
    });
    wrong += stored[0] != 1;
  }
  return wrong;
}
TEST(EmulatedMachine, AStoreReadsBehindTheWaitAtTheLatestAndIsSeenAfterTheLaunch) {
  EXPECT_EQ(times_stored_wrong(true), 0);
  EXPECT_GT(times_stored_wrong(false), 0);
}
TEST(EmulatedMachine, AStoreThatHasBeenReadNeedNotBeSeen) {
  alignas(16) std::array<int, 4> stored{};
  run({.threads = 1, .shared_bytes = 64}, [&] {
    const int before = stored[0];
    reinterpret_cast<int*>(shared_memory())[0] = 1;
    store_in_group(stored.data(), shared_address(shared_memory()), 16);
    commit_stores();
    wait_until_stores_have_read(0);
    EXPECT_EQ(stored[0], before);
    wait_for_stores();
    EXPECT_EQ(stored[0], 1);
  });
}
TEST(EmulatedMachine, SaysWhatALaunchLeavesUnderWay) {
  alignas(16) std::array<int, 4> stored{};
  std::set<std::string> said;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    seed_schedule(seed);
    said.insert(fault_of({.threads = 1, .shared_bytes = 64}, [&] {
      store_in_group(stored.data(), shared_address(shared_memory()), 16);
      commit_stores();
    }));
  }
  EXPECT_TRUE(said.contains("thread 0 of block 0: ended before its bulk stores had read shared memory"));
}
TEST(EmulatedMachine, SaysThatAFenceIsMissing) {
  const auto read_after = [](bool fences) {
    return fault_of({.threads = 64, .shared_bytes = 64}, [fences] {
      if (place().thread == 5) {
        written(32, 16);
        if (fences) fence_written();
      }
      block_barrier(0, 0);
      if (place().thread == 40) read_by_the_way(16, 32);
    });
  };
  EXPECT_TRUE(says(read_after(false),
                   "thread 40 of block 0: shared memory is read by the way, from byte 32, "
                   "that thread 5 wrote and has not fenced"));
  EXPECT_EQ(read_after(true), "");
}
TEST(EmulatedMachine, TheScheduleFollowsFromTheSeed) {
  const auto order_of = [](std::uint64_t seed) {
    seed_schedule(seed);
    std::vector<unsigned> order;
    run({.blocks = 4, .threads = 64, .cooperative = true}, [&] {
      for (int i = 0; i < 3; ++i) {
        rest();
        order.push_back(place().block * 64 + place().thread);
      }
    });
    return order;
  };
  std::set<std::vector<unsigned>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto order = order_of(seed);
    EXPECT_EQ(order, order_of(seed));
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 1u);
}

TEST(EmulatedMachine, BlocksOfAPlainLaunchNeedNotBeThereAtOnce) {
  int together = 0, most = 0;
  run({.blocks = 5, .threads = 32}, [&] {
    most = std::max(most, ++together);
    rest();
    --together;
  });
  EXPECT_LT(most, 5 * 32);
}

struct SeenByNext {
  int early = 0,
      wrong = 0;  // of 100 runs: the next launch began before this one's end; it read what was not yet there
};
/// A launch of three blocks, the last of which stores a value at its end, and one that reads it, behind the wait or without.
SeenByNext seen_by_next(bool lets_begin, bool waits) {
  SeenByNext seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    seed_schedule(seed);
    int value = 0, read = 0;
    bool early = false;
    const std::array launches{Launch{{.blocks = 3, .threads = 32},
                                     [&] {
                                       if (lets_begin) let_next_launch_begin();
                                       for (int i = 0; i < 100; ++i) rest();
                                       if (place().block == 2) value = 1;
                                     }},
                              Launch{{.blocks = 2, .threads = 32, .overlaps = true}, [&] {
                                       early = early || value == 0;
                                       if (waits) wait_for_launch_before();
                                       if (place().block == 0) read = value;
                                     }}};
    run(launches);
    seen.early += early;
    seen.wrong += read != 1;
  }
  return seen;
}
TEST(EmulatedMachine, ALaunchMayBeginBeforeTheEndOfTheOneBeforeAndWaitForIt) {
  const SeenByNext seen = seen_by_next(true, true);
  EXPECT_GT(seen.early, 0);
  EXPECT_EQ(seen.wrong, 0);
  EXPECT_GT(seen_by_next(true, false).wrong, 0);
}
TEST(EmulatedMachine, ALaunchBeginsWhenAllBlocksOfTheOneBeforeHaveLetIt) {
  const SeenByNext seen = seen_by_next(false, false);
  EXPECT_EQ(seen.early, 0);
  EXPECT_EQ(seen.wrong, 0);
}

/// A kernel gives up a wait after some hundred polls. So few are enough here only if a lane that polls sleeps in between.
/// Each waits for what the other has stored.
TEST(EmulatedMachine, LaunchesBesideEachOtherMayWaitForEachOther) {
  constexpr Shape one = {.blocks = 2, .threads = 32, .cluster = 1, .cooperative = true, .shared_bytes = 0};
  std::array<std::uint32_t, 2> words{};
  const auto waits = [&](std::size_t mine) {
    if (place().block == 0 && place().thread == 0) {
      words[mine] = 1;
      stored(&words[mine]);
    }
    do polled(&words[1 - mine]);
    while (words[1 - mine] == 0);
  };
  const std::array<Launch, 2> both{Launch{one, [&] { waits(0); }}, Launch{one, [&] { waits(1); }}};
  EXPECT_NO_THROW(run_beside(both));
  EXPECT_EQ(words, (std::array<std::uint32_t, 2>{1, 1}));
  words = {};
  EXPECT_THROW(run(both), Fault);
}

TEST(EmulatedMachine, PollsFewTimesHoweverManyPlacesWereReadBefore) {
  constexpr int kRounds = 2000;
  for (const std::size_t before : {0, 50, 64, 100, 1000}) {
    alignas(16) std::array<std::array<int, 4>, 1001> places{};  // 16 bytes each
    int polls = 0;
    run({.blocks = 2, .threads = 1, .cooperative = true}, [&] {
      if (place().block == 0) {
        for (int round = 0; round < kRounds; ++round) rest();
        places[1000][0] = 1;
        stored(&places[1000]);
        return;
      }
      for (std::size_t i = 0; i < before; ++i) polled(&places[i]);
      do {
        polled(&places[1000]);
        ++polls;
      } while (places[1000][0] == 0);
    });
    EXPECT_LE(polls, kRounds / 8) << "behind " << before << " other places";
  }
}

TEST(EmulatedMachine, SaysThatNobodyCanGoOn) {
  EXPECT_TRUE(says(fault_of({.threads = 64},
                            [] {
                              if (place().thread < 32) block_barrier(0, 0);
                            }),
                   "nobody can go on: warp 0 of block 0 (32 lanes left"));
}
TEST(EmulatedMachine, SaysThatALaneWentElsewhere) {
  int mine = 0;
  const auto nothing = [](int* const*) {};
  EXPECT_TRUE(says(fault_of({.threads = 32},
                            [&] { with_warp(place().thread == 7 ? "ldmatrix" : "shuffle", mine, nothing); }),
                   "while others of the warp are at"));
  EXPECT_TRUE(says(fault_of({.threads = 32},
                            [&] {
                              if (place().thread != 7) with_warp("shuffle", mine, nothing);
                            }),
                   "31 at shuffle"));
}
TEST(EmulatedMachine, SaysThatABarrierIsMisused) {
  const Shape shape{.threads = 32, .shared_bytes = 64};
  EXPECT_TRUE(says(fault_of(shape, [] { counted_arrive(kBarrier); }), "no barrier was initialised there"));
  EXPECT_TRUE(says(fault_of({.threads = 64}, [] { block_barrier(1, place().thread < 32 ? 64 : 96); }),
                   "a barrier of"));
  EXPECT_TRUE(says(fault_of(shape,
                            [] {
                              if (place().thread != 0) return;
                              counted_init(kBarrier, 2);
                              counted_expect(kBarrier, 16);
                              counted_arrive(kBarrier);
                              counted_arrive(kBarrier);
                            }),
                   "one arrival more at a barrier than it expects"));
}
TEST(EmulatedMachine, SaysThatABlockEndedBeforeSomebodyArrivedAtItsBarrier) {
  const auto fault_of_arrival = [](bool meets) {
    std::set<std::string> said;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      seed_schedule(seed);
      said.insert(fault_of(kPair, [meets] {
        if (place().thread == 0) counted_init(shared_address(shared_memory()) + kBarrier, 1);
        cluster_barrier();
        if (place().thread == 40 && place().block == 0) {
          for (int i = 0; i < 5; ++i) rest();
          counted_arrive(shared_address_in(kBarrier, 1));
        }
        if (meets) cluster_barrier();
      }));
    }
    return said;
  };
  EXPECT_TRUE(fault_of_arrival(false).contains("thread 40 of block 0: a barrier of a block that has ended"));
  EXPECT_EQ(fault_of_arrival(true), std::set<std::string>{""});
}
TEST(EmulatedMachine, SaysThatMemoryIsNotTheBlocks) {
  const Shape shape{.threads = 32, .shared_bytes = 64};
  EXPECT_TRUE(says(fault_of(shape, [] { (void)shared_pointer(60, 8); }), "8 bytes from byte 60 of 64"));
  EXPECT_TRUE(says(fault_of(shape, [] { (void)shared_pointer(shared_address_in(0, 1), 8); }),
                   "a shared address of block 1 of a cluster of 1"));
  const int elsewhere = 0;
  EXPECT_TRUE(
      says(fault_of(shape, [&] { (void)shared_address(&elsewhere); }), "a pointer to something else"));
}
TEST(EmulatedMachine, SaysThatABlockEndedBeforeItsCopies) {
  alignas(16) static const std::array<int, 4> source{};
  EXPECT_TRUE(says(fault_of({.threads = 32, .shared_bytes = 1024},
                            [] {
                              if (place().thread != 0) return;
                              counted_init(kBarrier, 1);
                              for (int i = 0; i < 50; ++i) copy_later(kData, source.data(), 16, kBarrier);
                            }),
                   "before copies into their shared memory had landed"));
}

}  // namespace
}  // namespace headroom::emulated
