#include "machine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "scheduler.h"

namespace headroom::emulated {
namespace {

constexpr std::uint32_t kRankShift = 24;  // of a shared address

Lane& running() { return the_scheduler.running(); }
Block& running_block() { return *running().warp->block; }

void wait_at(Barrier& barrier, std::size_t expected, bool value) {
  if (barrier.arrived == 0) barrier.expected = expected;
  if (barrier.expected != expected)
    fault("a barrier of " + std::to_string(expected) + " threads at which others wait for " +
          std::to_string(barrier.expected));
  barrier.any = barrier.any || value;
  if (++barrier.arrived < expected) return the_scheduler.sleep_for(barrier.sleepers);
  barrier.arrived = 0;
  barrier.any_before = std::exchange(barrier.any, false);
  barrier.sleepers.wake();
  the_scheduler.event();
}

Block& block_of(std::uint32_t address) {
  const Block& own = running_block();
  const std::uint32_t rank = address >> kRankShift;
  if (rank >= own.cluster->blocks.size())
    fault("a shared address of block " + std::to_string(rank) + " of a cluster of " +
          std::to_string(own.cluster->blocks.size()));
  return *own.cluster->blocks[rank];
}
std::uint32_t place_in_block(std::uint32_t address) { return address & ((1u << kRankShift) - 1); }

CountedBarrier& counted(std::uint32_t address) {
  Block& block = block_of(address);
  const auto found = block.counted.find(place_in_block(address));
  if (found == block.counted.end()) fault("no barrier was initialised there");
  if (block.left == 0) fault("a barrier of a block that has ended");
  return found->second;
}

void read_now(GroupedStore& store) {
  if (store.read.empty()) store.read.assign(store.source, store.source + store.bytes);
}

}  // namespace

void run(std::span<const Launch> launches) { the_scheduler.run(launches); }
void run(const Shape& shape, const std::function<void()>& thread) {
  const Launch launch{shape, thread};
  run({&launch, 1});
}
void run_beside(std::span<const Launch> launches) { the_scheduler.run_beside(launches); }
void seed_schedule(std::uint64_t seed) { the_scheduler.seed(seed); }

const Place& place() { return running().place; }
int lane() { return static_cast<int>(running().place.thread % kWarp); }

namespace internal {

void* const* meet(const char* instruction, void* mine) {
  Warp& warp = *running().warp;
  if (warp.lanes.size() != kWarp) fault(std::string(instruction) + " in a warp that is not whole");
  if (warp.arrived == 0) warp.instruction = instruction;
  if (warp.instruction != instruction && std::strcmp(warp.instruction, instruction) != 0)
    fault(std::string(instruction) + " while others of the warp are at " + warp.instruction);
  warp.all[lane()] = mine;
  if (++warp.arrived == kWarp) return warp.all;
  the_scheduler.sleep_for(warp.sleepers);
  return nullptr;
}

void let_warp_go() {
  Warp& warp = *running().warp;
  warp.arrived = 0;
  warp.instruction = nullptr;
  warp.sleepers.wake();
  if (--warp.patience <= 0) the_scheduler.rest();
}

}  // namespace internal

void block_barrier(int which, unsigned count) {
  Block& block = running_block();
  wait_at(block.barriers[which], count == 0 ? block.threads : count, false);
}
bool block_any(bool value) {
  Block& block = running_block();
  wait_at(block.barriers[0], block.threads, value);
  return block.barriers[0].any_before;
}
void cluster_barrier() {
  Cluster& cluster = *running_block().cluster;
  wait_at(cluster.barrier, cluster.blocks.size() * running_block().threads, false);
}

void wait_for_launch_before() {
  Progress* before = running_block().launch->before;
  if (before != nullptr && !before->ended) the_scheduler.sleep_for(before->sleepers);
}
void let_next_launch_begin() { the_scheduler.let_next_begin(running_block()); }

void polled(const void* address) { the_scheduler.poll(address); }
void stored(const void* address) { the_scheduler.stored(address); }
void give_up_order() { the_scheduler.give_up_order(); }
std::uint64_t nanoseconds() { return the_scheduler.nanoseconds(); }
void rest() { the_scheduler.rest(); }
void fault(const std::string& what) { the_scheduler.fault(what); }

unsigned char* shared_memory() { return running_block().shared; }
unsigned char* block_variable(const void* key, std::size_t bytes) {
  return running_block()
      .variables.try_emplace(key, bytes, static_cast<unsigned char>(0xff))
      .first->second.data();
}
std::uint32_t shared_address(const void* pointer) {
  const Block& block = running_block();
  const auto place = static_cast<std::uintptr_t>(static_cast<const unsigned char*>(pointer) - block.shared);
  if (place > block.shared_bytes) fault("the shared address of a pointer to something else");
  return block.rank << kRankShift | static_cast<std::uint32_t>(place);
}
std::uint32_t shared_address_in(std::uint32_t address, std::uint32_t rank) {
  return rank << kRankShift | place_in_block(address);
}
unsigned char* shared_pointer(std::uint32_t address, std::size_t bytes) {
  Block& block = block_of(address);
  if (place_in_block(address) + bytes > block.shared_bytes)
    fault(std::to_string(bytes) + " bytes from byte " + std::to_string(place_in_block(address)) + " of " +
          std::to_string(block.shared_bytes) + " bytes of shared memory");
  if (block.left == 0) fault("shared memory of a block that has ended");
  return block.shared + place_in_block(address);
}

void counted_init(std::uint32_t barrier, std::uint32_t arrivals) {
  (void)shared_pointer(barrier, 8);
  CountedBarrier& fresh = block_of(barrier).counted[place_in_block(barrier)];
  fresh.arrivals = fresh.pending = arrivals;
  fresh.phase = 0;
  fresh.bytes = 0;
}
void counted_expect(std::uint32_t barrier, std::uint32_t bytes) {
  counted(barrier).bytes += bytes;
  counted_arrive(barrier);
}
void counted_arrive(std::uint32_t address) {
  CountedBarrier& barrier = counted(address);
  if (barrier.pending == 0) {
    if (the_scheduler.order_given_up()) return;
    fault("one arrival more at a barrier than it expects");
  }
  --barrier.pending;
  the_scheduler.next_phase_if_complete(barrier);
}
bool counted_done(std::uint32_t barrier, std::uint32_t parity) {
  CountedBarrier& counted_barrier = counted(barrier);
  if ((counted_barrier.phase & 1) == parity) the_scheduler.sleep_a_while_for(counted_barrier.sleepers);
  return (counted_barrier.phase & 1) != parity;
}

void copy_later(std::uint32_t destination, const void* source, std::uint32_t bytes, std::uint32_t barrier) {
  if (bytes % 16 != 0 || destination % 16 != 0 || reinterpret_cast<std::uintptr_t>(source) % 16 != 0)
    fault("a bulk copy of " + std::to_string(bytes) + " bytes that is not of whole 16 bytes");
  the_scheduler.later({.destination = shared_pointer(destination, bytes),
                       .source = source,
                       .words = {},
                       .bytes = bytes,
                       .block = &block_of(destination),
                       .barrier = &counted(barrier)});
}
void copy_later_to(std::uint32_t ranks, std::uint32_t destination, const void* source, std::uint32_t bytes,
                   std::uint32_t barrier) {
  for (std::uint32_t rank = 0; ranks >> rank != 0; ++rank)
    if ((ranks >> rank & 1) != 0)
      copy_later(shared_address_in(destination, rank), source, bytes, shared_address_in(barrier, rank));
}
void write_later(std::uint32_t destination, std::uint32_t bytes, std::uint32_t barrier,
                 std::function<void()> write) {
  the_scheduler.later({.destination = shared_pointer(destination, bytes),
                       .source = nullptr,
                       .words = {},
                       .bytes = bytes,
                       .block = &block_of(destination),
                       .barrier = &counted(barrier),
                       .write = std::move(write)});
}
void send_later(std::uint32_t destination, std::span<const std::uint32_t> words, std::uint32_t barrier) {
  const auto bytes = static_cast<std::uint32_t>(words.size_bytes());
  if (destination % bytes != 0) fault("a store to an address that is not a multiple of its bytes");
  LateCopy copy{.destination = shared_pointer(destination, bytes),
                .source = nullptr,
                .words = {},
                .bytes = bytes,
                .block = &block_of(destination),
                .barrier = &counted(barrier)};
  std::copy(words.begin(), words.end(), copy.words);
  the_scheduler.later(copy);
}

void copy_in_group(void* destination, const void* source, std::size_t bytes) {
  if (the_scheduler.draw(2)) {
    std::memcpy(destination, source, bytes);
    return;
  }
  running().open_group.push_back({destination, source, bytes});
}
void commit_group() { running().groups.push_back(std::exchange(running().open_group, {})); }
void wait_for_groups(std::size_t all_but) {
  auto& groups = running().groups;
  const auto end = groups.end() - static_cast<std::ptrdiff_t>(std::min(all_but, groups.size()));
  for (auto group = groups.begin(); group != end; ++group)
    for (const GroupedCopy& copy : *group) std::memcpy(copy.destination, copy.source, copy.bytes);
  groups.erase(groups.begin(), end);
}

void store_in_group(std::uint32_t source, std::uint32_t bytes,
                    std::function<void(const unsigned char*)> write) {
  if (bytes == 0 || bytes % 16 != 0 || source % 16 != 0)
    fault("a bulk store of " + std::to_string(bytes) + " bytes that is not of whole 16 bytes");
  read_by_the_way(source, bytes);
  auto& stores = running().open_stores;
  stores.push_back({shared_pointer(source, bytes), bytes, std::move(write), {}});
  if (the_scheduler.draw(2)) read_now(stores.back());
}
void store_in_group(void* destination, std::uint32_t source, std::uint32_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(destination) % 16 != 0)
    fault("a bulk store to an address that is not a multiple of 16 bytes");
  store_in_group(source, bytes, [=](const unsigned char* read) { std::memcpy(destination, read, bytes); });
}
void commit_stores() { running().stores.push_back(std::exchange(running().open_stores, {})); }
void wait_until_stores_have_read(std::size_t all_but) {
  auto& groups = running().stores;
  for (std::size_t i = 0; i + all_but < groups.size(); ++i)
    for (GroupedStore& store : groups[i]) read_now(store);
}
void wait_for_stores() {
  for (StoreGroup& group : running().stores)
    for (GroupedStore& store : group) {
      read_now(store);
      store.write(store.read.data());
    }
  running().stores.clear();
}

void warp_later(std::function<void()> work) {
  Warp& warp = *running().warp;
  warp.put_off.push_back({std::move(work), warp.committed});
  the_scheduler.do_put_off(warp);
}
void commit_warp_work() { ++running().warp->committed; }
void wait_for_warp_work(std::size_t all_but) {
  Warp& warp = *running().warp;
  for (; !warp.put_off.empty() && warp.put_off.front().group + all_but < warp.committed;
       warp.put_off.pop_front())
    warp.put_off.front().work();
}

void written(std::uint32_t address, std::uint32_t bytes) {
  Lane& lane = running();
  const std::uint32_t place = place_in_block(address);
  for (std::size_t i = place / kFencedBytes; i * kFencedBytes < place + bytes; ++i) {
    if (std::exchange(lane.warp->block->unfenced[i], &lane) != &lane) lane.written.push_back(i);
  }
}
void fence_written() {
  Lane& lane = running();
  for (const std::size_t i : lane.written)
    if (lane.warp->block->unfenced[i] == &lane) lane.warp->block->unfenced[i] = nullptr;
  lane.written.clear();
}
void read_by_the_way(std::uint32_t address, std::uint32_t bytes) {
  (void)shared_pointer(address, bytes);
  if (the_scheduler.order_given_up()) return;
  const Block& block = block_of(address);
  const std::uint32_t place = place_in_block(address);
  for (std::size_t i = place / kFencedBytes; i * kFencedBytes < place + bytes; ++i)
    if (block.unfenced[i] != nullptr)
      fault("shared memory is read by the way, from byte " + std::to_string(i * kFencedBytes) +
            ", that thread " + std::to_string(block.unfenced[i]->place.thread) + " wrote and has not fenced");
}

}  // namespace headroom::emulated
