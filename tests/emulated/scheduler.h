// Who goes on when: the lanes of a launch, what they wait for, and copies under way.
//
// A lane that waits is asleep until what it waits for wakes it, so that a round goes over warps only that have something
// to do. A round gives each of them a turn: its lanes run until they wait, or until the warp has had its share.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "machine.h"
#include "stacks.h"

namespace headroom::emulated {

struct Lane;
struct Warp;
struct Block;

/// Those that sleep for one thing. An entry is void once its lane has been woken by another.
class Sleepers {
 public:
  void add(Lane& lane);
  /// Wakes all.
  void wake();

 private:
  struct Entry {
    Lane* lane;
    std::uint64_t sleep;
  };
  std::vector<Entry> entries_;
};

struct GroupedCopy {
  void* destination;
  const void* source;
  std::size_t bytes;
};
using CopyGroup = std::vector<GroupedCopy>;

/// Bytes of shared memory that are written and fenced as one.
inline constexpr std::size_t kFencedBytes = 16;

/// A copy out of shared memory: `read` has its bytes when the source may be written again, and `write` stores them.
struct GroupedStore {
  const unsigned char* source;
  std::size_t bytes;
  std::function<void(const unsigned char*)> write;
  std::vector<unsigned char> read;
};
using StoreGroup = std::vector<GroupedStore>;

/// A place in memory that others store to: all of 16 bytes, and some more that share the entry.
struct StoredTo {
  std::uint64_t stores = 0;
  Sleepers sleepers;
};
struct Poll {
  StoredTo* place = nullptr;
  std::uint64_t stores = 0;  // when it was read
};

struct Lane {
  boost::context::fiber fiber, scheduler;
  Warp* warp = nullptr;
  Place place{};
  bool asleep = false, resting = false, done = false;  // resting: until its warp's next turn
  std::uint64_t sleeps = 0;                            // how often it went to sleep
  Poll polls[64];  // since somebody stored to one of them, or the lane slept, or there were so many
  std::size_t poll_count = 0;
  std::uint64_t polled = 0;  // a bit for those of `polls` that share it
  CopyGroup open_group;
  std::vector<CopyGroup> groups;  // the oldest first
  StoreGroup open_stores;
  std::vector<StoreGroup> stores;    // the same
  std::vector<std::size_t> written;  // of its block's `unfenced`
};

struct PutOff {
  std::function<void()> work;
  std::size_t group;
};
/// When a warp does what it has put off: at once, some of it now and then, or when it has to.
enum class Eagerness { kAtOnce, kSometimes, kLate };

struct Warp {
  Block* block = nullptr;
  std::vector<Lane> lanes;
  bool in_round = true;
  const char* instruction = nullptr;  // at which lanes meet
  void* all[kWarp] = {};
  std::size_t arrived = 0;
  Sleepers sleepers;           // there
  std::deque<PutOff> put_off;  // the oldest first
  std::size_t committed = 0;   // groups of it
  Eagerness eagerness = Eagerness::kSometimes;
  int patience = 0;      // meetings until others have a turn
  unsigned held_up = 0;  // rounds
};

struct Barrier {
  std::size_t arrived = 0, expected = 0;
  bool any = false, any_before = false;
  Sleepers sleepers;
};

struct CountedBarrier {
  std::uint32_t arrivals = 0, pending = 0, phase = 0;
  std::int64_t bytes = 0;  // still to land; below zero if some landed before they were expected
  Sleepers sleepers;
};

struct Cluster {
  Barrier barrier;
  std::vector<Block*> blocks;
};

/// How far a launch has come.
struct Progress {
  const Launch* launch = nullptr;
  Progress* before = nullptr;
  std::vector<unsigned> order;  // of its clusters
  unsigned placed = 0;          // clusters
  unsigned let_next = 0;        // blocks that let the next launch begin, or have ended
  std::size_t left = 0;         // lanes of the blocks that are there
  bool ended = false;
  Sleepers sleepers;  // until it has ended
};

struct Block {
  Progress* launch = nullptr;
  bool let_next = false;
  Cluster* cluster = nullptr;
  std::uint32_t rank = 0;  // in the cluster
  std::size_t threads = 0, left = 0;
  std::vector<unsigned char> memory;
  unsigned char* shared = nullptr;
  std::size_t shared_bytes = 0;
  std::unordered_map<const void*, std::vector<unsigned char>> variables;  // by their declarations
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::unordered_map<std::uint32_t, CountedBarrier> counted;  // by their place
  std::vector<const Lane*> unfenced;  // who wrote these 16 bytes and has not said so to copies and products
};

struct LateCopy {
  unsigned char* destination;
  const void* source;  // null: words, or what `write` does
  std::uint32_t words[4];
  std::uint32_t bytes;
  Block* block;  // of the destination
  CountedBarrier* barrier;
  std::function<void()> write = {};
};

class Scheduler {
 public:
  void seed(std::uint64_t seed) { random_.seed(seed); }
  void run(std::span<const Launch> launches);
  void run_beside(std::span<const Launch> launches);
  std::uint64_t nanoseconds() const { return nanoseconds_; }
  bool draw(unsigned one_in) { return random_() % one_in == 0; }

  // ---- of the running lane
  Lane& running() { return *running_; }
  /// Lets others go on.
  void rest();
  /// Until one of them wakes it.
  void sleep_for(Sleepers& sleepers);
  /// The same, but not forever: a thread that polls looks at the clock as well.
  void sleep_a_while_for(Sleepers& sleepers);
  void poll(const void* address);
  void stored(const void* address);
  [[noreturn]] void fault(const std::string& what);

  void give_up_order() { order_given_up_ = true; }
  bool order_given_up() const { return order_given_up_; }

  void wake(Lane& lane);
  /// Something that others may have waited for.
  void event() { ++events_; }
  void later(const LateCopy& copy) { late_.push_back(copy); }
  void next_phase_if_complete(CountedBarrier& barrier);
  void let_next_begin(Block& block);
  /// Does what a warp has put off, some of it or nothing.
  void do_put_off(Warp& warp);

 private:
  struct Alarm {
    std::uint64_t round;
    Lane* lane;
    std::uint64_t sleep;
  };

  std::vector<Progress> begin(std::span<const Launch> launches, bool is_in_order);
  void leave();
  void sleep();
  void end(Lane& lane);
  boost::context::fiber start(Lane& lane, std::size_t number);
  void hold_up(Progress& progress);
  void place_clusters(Progress& progress);
  void place_cluster(Progress& progress, unsigned cluster);
  void remove_blocks();
  /// Until the blocks of `progress` that are there have ended; some of `next` may begin meanwhile.
  void until_done(Progress& progress, Progress* next);
  void turn(Warp& warp);
  void land_some();
  void ring_alarms();
  std::string standing() const;
  std::size_t entry_of(const void* address) const;

  std::mt19937_64 random_;
  Stacks stacks_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Warp*> in_round_;
  std::vector<LateCopy> late_;
  std::deque<Alarm> alarms_;
  std::vector<StoredTo> stored_to_ = std::vector<StoredTo>(std::size_t{1} << 16);
  std::size_t stacks_in_use_ = 0;
  Lane* running_ = nullptr;
  std::string fault_;
  bool order_given_up_ = false;  // in this run
  std::uint64_t events_ = 0, round_ = 0, nanoseconds_ = 1;
};

/// The only one: a kernel's functions have no argument to find it by.
extern Scheduler the_scheduler;

}  // namespace headroom::emulated
