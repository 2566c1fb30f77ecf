// A GPU that the CPU plays, for tests of kernels where there is no GPU: slow, and without a memory model, but it runs the
// kernels' own source, in another order of events every time.
//
// Every thread of a launch is a fiber. A warp's lanes meet where an instruction takes them all; threads wait at barriers;
// copies that a GPU makes by the way land later, in any order, and so do a warpgroup's products, in theirs. Thread blocks come
// in any order, a few at once, and the first of a launch that may overlap before the last of the one before. A scheduler
// draws who goes on, for how long, who is held up and what lands, from a seed; what only holds in one order of these
// does not hold for long. A launch that can't go on, a lane that goes elsewhere than its warp, or a barrier that too many
// arrive at is an error that says where.
//
// What it does not see: a store overtaken by another of the same thread (memory is sequentially consistent here), races
// between two instructions that no wait lies between, plain stores to shared memory that a copy or a product reads without a
// fence, and time: only nanoseconds() passes, faster while all wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>

namespace headroom::emulated {

inline constexpr int kWarp = 32;
/// Of the device that is played, an H200.
inline constexpr int kComputeMajor = 9, kSms = 132;
inline constexpr int kSharedBytesOfBlock = 232448, kSharedBytesOfSm = 233472, kReservedSharedBytes = 1024;
inline constexpr int kThreadsOfSm = 2048;
inline constexpr int kL2Bytes = 60 << 20;

struct Shape {
  unsigned blocks = 1, threads = 1;  // threads: of a block
  unsigned cluster = 1;              // blocks of one
  unsigned grid_y = 1, grid_z = 1;   // of the blocks; grid_x is what they leave
  bool cooperative = false;          // all blocks are there at once
  bool overlaps = false;             // may begin before the launch before it has ended
  std::size_t shared_bytes = 0;      // of a block, besides static ones
};

/// What a kernel did that no GPU would take, or where it came to a stand.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Launch {
  Shape shape;
  std::function<void()> thread;  // run as every thread of every block
};

/// Runs them one after the other; returns when all are done. Throws Fault.
void run(std::span<const Launch> launches);
void run(const Shape& shape, const std::function<void()>& thread);
/// Runs them beside each other, as on a GPU each; all of their blocks are there at once.
void run_beside(std::span<const Launch> launches);

/// Seeds what is drawn from here on; run() adds to it.
void seed_schedule(std::uint64_t seed);

// ---- what a running thread asks for

struct Place {
  unsigned thread, block;
  const Shape* shape;  // of the launch
};
const Place& place();
int lane();

namespace internal {
void* const* meet(const char* instruction, void* mine);
void let_warp_go();
}  // namespace internal
/// All 32 lanes come with a Mine, and `together` is called once with all of them, in which it leaves what lanes get.
/// Throws Fault if another `instruction` brought some lane here.
template <class Mine, class Together>
void with_warp(const char* instruction, Mine& mine, const Together& together) {
  void* const* all = internal::meet(instruction, &mine);
  if (all == nullptr) return;  // somebody else came last
  Mine* lanes[kWarp];
  for (int i = 0; i < kWarp; ++i) lanes[i] = static_cast<Mine*>(all[i]);
  together(lanes);
  internal::let_warp_go();
}

/// A barrier of `count` threads of the block (0: all).
void block_barrier(int which, unsigned count);
/// All threads of the block; whether any of them says so.
bool block_any(bool value);
void cluster_barrier();

/// Waits for the end of the launch before.
void wait_for_launch_before();
/// This block does not mind that the next launch begins, once all do or have ended.
void let_next_launch_begin();

/// To be called before a load of what others may store to, and behind such a store: who polls in vain sleeps.
void polled(const void* address);
void stored(const void* address);
/// Somebody has waited too long, and what waits are for no longer holds: until the launch ends, arrivals that a barrier does not
/// expect, shared memory that was not fenced, and copies that come too late are no faults.
void give_up_order();
/// A device's clock: a step takes no less of it than the rounds in which threads have their turns.
std::uint64_t nanoseconds();
/// Lets others go on.
void rest();
[[noreturn]] void fault(const std::string& what);

// ---- shared memory: addresses of 32 bits; the upper eight say which block of the cluster

unsigned char* shared_memory();
/// Of the running block, `bytes` of its own for each `key`; 0xff at first.
unsigned char* block_variable(const void* key, std::size_t bytes);
std::uint32_t shared_address(const void* pointer);
std::uint32_t shared_address_in(std::uint32_t address, std::uint32_t rank);
/// Throws Fault if `bytes` from there on are not all in a block's shared memory.
unsigned char* shared_pointer(std::uint32_t address, std::size_t bytes);

// ---- barriers that count arrivals and bytes

void counted_init(std::uint32_t barrier, std::uint32_t arrivals);
void counted_expect(std::uint32_t barrier, std::uint32_t bytes);  // and arrives
void counted_arrive(std::uint32_t barrier);
bool counted_done(std::uint32_t barrier, std::uint32_t parity);

// ---- copies by the way

/// Lands some time later and is counted by `barrier`. `source` is read when it lands.
void copy_later(std::uint32_t destination, const void* source, std::uint32_t bytes, std::uint32_t barrier);
/// The same to the same place in several blocks of the cluster, one a bit of `ranks`, each counted by its own barrier.
void copy_later_to(std::uint32_t ranks, std::uint32_t destination, const void* source, std::uint32_t bytes,
                   std::uint32_t barrier);
/// Bytes that `write` brings to the destination.
void write_later(std::uint32_t destination, std::uint32_t bytes, std::uint32_t barrier,
                 std::function<void()> write);
/// The same of a value.
void send_later(std::uint32_t destination, std::span<const std::uint32_t> words, std::uint32_t barrier);
/// Of this thread, in groups: source is read and written at the last moment, or right now.
void copy_in_group(void* destination, const void* source, std::size_t bytes);
void commit_group();
void wait_for_groups(std::size_t all_but);
/// The same of a copy out of shared memory, whose groups are counted apart: its source is read by the first of these waits at the
/// latest, and what it has read may be seen no sooner than the second one ends, or the launch.
void store_in_group(void* destination, std::uint32_t source, std::uint32_t bytes);
/// The same where `write` puts bytes that have been read to their places.
void store_in_group(std::uint32_t source, std::uint32_t bytes,
                    std::function<void(const unsigned char*)> write);
void commit_stores();
void wait_until_stores_have_read(std::size_t all_but);
void wait_for_stores();

// ---- work of a warp by the way, in groups and in its order; to be called where its lanes are together (with_warp)

/// Done some time later, at the latest by the wait. May not fault.
void warp_later(std::function<void()> work);
void commit_warp_work();
void wait_for_warp_work(std::size_t all_but);

// ---- shared memory that copies and products read: not before the thread that wrote it has said so by a fence

void written(std::uint32_t address, std::uint32_t bytes);
void fence_written();
/// Throws Fault if some of it was written and not fenced.
void read_by_the_way(std::uint32_t address, std::uint32_t bytes);

}  // namespace headroom::emulated
