#include "scheduler.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

namespace headroom::emulated {
namespace {

constexpr std::size_t kSharedAlignment = 1024;

// What is drawn, and how time passes.
constexpr unsigned kLongestTurn = 400;                      // meetings of a warp
constexpr unsigned kOneInHeldUp = 16, kLongestHeldUp = 64;  // turns; rounds
constexpr unsigned kOneInLands = 8;                         // turns
constexpr unsigned kOneInChangesEagerness = 4;              // turns of a warp that puts things off
constexpr unsigned kMostAtOnce = 3;                         // clusters
constexpr unsigned kOneInBeginsEarly = 2;                   // rounds, of the next launch
constexpr unsigned kLongestSleep = 64;                      // rounds, of a thread that polls
constexpr std::uint64_t kRoundNanoseconds = 2000, kFirstLeapNanoseconds = 1'000'000;
constexpr int kMostDoublings = 14;
constexpr int kPatientRounds = 256;      // without an event, before time runs faster
constexpr int kHopelessRounds = 100000;  // without an event, before the launch is given up

std::string described(const Lane& lane) {
  return "thread " + std::to_string(lane.place.thread) + " of block " + std::to_string(lane.place.block);
}

void require_possible(const Shape& shape) {
  if (shape.threads == 0 || shape.threads > 1024 || shape.blocks == 0 || shape.cluster == 0 ||
      shape.blocks % shape.cluster != 0)
    throw Fault("a launch of " + std::to_string(shape.blocks) + " blocks in clusters of " +
                std::to_string(shape.cluster) + " with " + std::to_string(shape.threads) + " threads");
}

}  // namespace

void Sleepers::add(Lane& lane) { entries_.push_back({&lane, lane.sleeps}); }
void Sleepers::wake() {
  for (const Entry& entry : entries_)
    if (entry.lane->asleep && entry.lane->sleeps == entry.sleep) the_scheduler.wake(*entry.lane);
  entries_.clear();
}

Scheduler the_scheduler;

std::vector<Progress> Scheduler::begin(std::span<const Launch> launches, bool is_in_order) {
  for (const Launch& launch : launches) require_possible(launch.shape);
  fault_.clear();
  order_given_up_ = false;
  std::vector<Progress> all(launches.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].launch = &launches[i];
    all[i].before = is_in_order && i > 0 ? &all[i - 1] : nullptr;
    all[i].order.resize(launches[i].shape.blocks / launches[i].shape.cluster);
    std::iota(all[i].order.begin(), all[i].order.end(), 0u);
    std::shuffle(all[i].order.begin(), all[i].order.end(), random_);
  }
  return all;
}

void Scheduler::run_beside(std::span<const Launch> launches) {
  std::vector<Progress> all = begin(launches, false);
  try {
    for (Progress& progress : all)
      while (progress.placed < progress.order.size()) place_clusters(progress);
    for (Progress& progress : all) until_done(progress, nullptr);
    remove_blocks();
  } catch (...) {
    remove_blocks();
    throw;
  }
}

void Scheduler::run(std::span<const Launch> launches) {
  std::vector<Progress> all = begin(launches, true);
  try {
    for (std::size_t i = 0; i < all.size(); ++i) {
      Progress& progress = all[i];
      Progress* next = i + 1 < all.size() && launches[i + 1].shape.overlaps ? &all[i + 1] : nullptr;
      while (progress.left > 0 || progress.placed < progress.order.size()) {
        if (progress.left == 0) place_clusters(progress);
        until_done(progress, next);
        if (next == nullptr || next->left == 0) remove_blocks();
      }
      progress.ended = true;
      progress.sleepers.wake();
      event();
    }
  } catch (...) {
    remove_blocks();
    throw;
  }
}

// ---- the running lane

void Scheduler::leave() {
  Lane& lane = *running_;
  lane.scheduler = std::move(lane.scheduler).resume();
}
void Scheduler::rest() {
  running_->resting = true;
  leave();
}
void Scheduler::sleep() {
  running_->asleep = true;
  leave();
}
void Scheduler::wake(Lane& lane) {
  lane.asleep = false;
  if (std::exchange(lane.warp->in_round, true)) return;
  in_round_.push_back(lane.warp);
}
void Scheduler::sleep_for(Sleepers& sleepers) {
  ++running_->sleeps;
  sleepers.add(*running_);
  sleep();
}
void Scheduler::sleep_a_while_for(Sleepers& sleepers) {
  alarms_.push_back({round_ + kLongestSleep, running_, running_->sleeps + 1});
  sleep_for(sleepers);
}

std::size_t Scheduler::entry_of(const void* address) const {
  return reinterpret_cast<std::uintptr_t>(address) / 16 * 0x9e3779b97f4a7c15u >> 48;
}
void Scheduler::stored(const void* address) {
  StoredTo& place = stored_to_[entry_of(address)];
  ++place.stores;
  place.sleepers.wake();
  event();
}
/// Who reads a place again, and nobody has stored to any of those read since, sleeps until somebody does.
void Scheduler::poll(const void* address) {
  Lane& lane = *running_;
  const std::size_t entry = entry_of(address);
  const std::uint64_t bit = std::uint64_t{1} << entry % 64;
  const auto end = lane.polls + lane.poll_count;
  if ((lane.polled & bit) != 0) {
    const bool news =
        std::any_of(lane.polls, end, [](const Poll& poll) { return poll.place->stores != poll.stores; });
    const bool again =
        std::any_of(lane.polls, end, [&](const Poll& poll) { return poll.place == &stored_to_[entry]; });
    if (again && !news) {
      ++lane.sleeps;
      for (const Poll* poll = lane.polls; poll != end; ++poll) poll->place->sleepers.add(lane);
      alarms_.push_back({round_ + kLongestSleep, &lane, lane.sleeps});
      sleep();
    }
    if (again || news) lane.poll_count = lane.polled = 0;
  }
  // With no room for one more it begins anew: else a loop that comes after reads of many other places would never sleep, and its
  // polls would run out before anybody else had a turn.
  if (lane.poll_count == std::size(lane.polls)) {
    lane.poll_count = lane.polled = 0;
    rest();
  }
  lane.polled |= bit;
  lane.polls[lane.poll_count++] = {&stored_to_[entry], stored_to_[entry].stores};
}
void Scheduler::fault(const std::string& what) {
  if (fault_.empty()) fault_ = described(*running_) + ": " + what;
  for (;;) rest();
}

void Scheduler::next_phase_if_complete(CountedBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.arrivals;
  barrier.sleepers.wake();
  event();
}

void Scheduler::do_put_off(Warp& warp) {
  std::size_t count = warp.put_off.size();
  if (count == 0 || warp.eagerness == Eagerness::kLate) return;
  if (warp.eagerness == Eagerness::kSometimes) count = random_() % (count + 1);
  for (; count > 0; --count) {
    warp.put_off.front().work();
    warp.put_off.pop_front();
  }
}

// ---- a launch

/// What a thread has left under way: its stores are seen when the launch has ended, but its shared memory is gone.
void Scheduler::end(Lane& lane) {
  const auto fail = [&](const char* what) {
    if (fault_.empty()) fault_ = described(lane) + ": " + what;
  };
  if (!lane.open_stores.empty()) fail("ended before it committed its bulk stores");
  for (const StoreGroup& group : lane.stores)
    for (const GroupedStore& store : group) {
      if (store.read.empty())
        fail("ended before its bulk stores had read shared memory");
      else
        store.write(store.read.data());
    }
  if (!lane.warp->put_off.empty()) fail("ended before its warp's products had been waited for");
}

boost::context::fiber Scheduler::start(Lane& lane, std::size_t number) {
  return {std::allocator_arg, stacks_.at(number), Stacks::Owner{},
          [this, &lane](boost::context::fiber&& scheduler) {
            lane.scheduler = std::move(scheduler);
            try {
              lane.warp->block->launch->launch->thread();
            } catch (const std::exception& error) {
              if (fault_.empty()) fault_ = described(lane) + ": " + error.what();
            }
            end(lane);
            lane.done = true;
            Block& block = *lane.warp->block;
            if (--block.left == 0) let_next_begin(block);
            --block.launch->left;
            event();
            return std::move(lane.scheduler);
          }};
}

void Scheduler::let_next_begin(Block& block) {
  if (!std::exchange(block.let_next, true)) ++block.launch->let_next;
}

/// What is left of a launch when the next one begins is late, or next to nothing of the next would have begun.
void Scheduler::hold_up(Progress& progress) {
  for (auto& block : blocks_)
    for (Warp& warp : block->warps)
      if (block->launch == &progress) warp.held_up = static_cast<unsigned>(random_() % kLongestHeldUp);
}
/// The next ones of its order: all of a cooperative launch, else a few.
void Scheduler::place_clusters(Progress& progress) {
  const Shape& shape = progress.launch->shape;
  const auto left = static_cast<unsigned>(progress.order.size()) - progress.placed;
  const unsigned count =
      shape.cooperative ? left : std::min(left, static_cast<unsigned>(random_() % kMostAtOnce) + 1);
  for (const unsigned end = progress.placed + count; progress.placed < end; ++progress.placed)
    place_cluster(progress, progress.order[progress.placed]);
}
void Scheduler::place_cluster(Progress& progress, unsigned cluster) {
  const Shape& shape = progress.launch->shape;
  clusters_.push_back(std::make_unique<Cluster>());
  for (unsigned rank = 0; rank < shape.cluster; ++rank) {
    const unsigned number = cluster * shape.cluster + rank;
    Block& block = *blocks_.emplace_back(std::make_unique<Block>());
    block.launch = &progress;
    block.cluster = clusters_.back().get();
    block.rank = static_cast<std::uint32_t>(block.cluster->blocks.size());
    block.cluster->blocks.push_back(&block);
    block.threads = block.left = shape.threads;
    block.shared_bytes = shape.shared_bytes;
    block.unfenced.assign(shape.shared_bytes / kFencedBytes + 1, nullptr);
    block.memory.assign(shape.shared_bytes + kSharedAlignment, 0xff);  // floating-point values are NaN
    block.shared = block.memory.data() + kSharedAlignment -
                   reinterpret_cast<std::uintptr_t>(block.memory.data()) % kSharedAlignment;
    block.warps = std::vector<Warp>((shape.threads + kWarp - 1) / kWarp);
    for (std::size_t w = 0; w < block.warps.size(); ++w) {
      Warp& warp = block.warps[w];
      warp.block = &block;
      warp.lanes = std::vector<Lane>(std::min<std::size_t>(kWarp, shape.threads - w * kWarp));
      for (std::size_t i = 0; i < warp.lanes.size(); ++i) {
        Lane& lane = warp.lanes[i];
        lane.warp = &warp;
        lane.place = {static_cast<unsigned>(w * kWarp + i), number, &shape};
        lane.fiber = start(lane, stacks_in_use_++);
        ++progress.left;
      }
      in_round_.push_back(&warp);
    }
  }
}
/// Of fibers that have not come to their end boost unwinds the stacks.
void Scheduler::remove_blocks() {
  in_round_.clear();
  alarms_.clear();
  late_.clear();
  blocks_.clear();
  clusters_.clear();
  stacks_in_use_ = 0;
  for (StoredTo& place : stored_to_) place = {};
}

void Scheduler::until_done(Progress& progress, Progress* next) {
  std::uint64_t events = events_;
  int quiet_rounds = 0;
  while (progress.left > 0) {
    const bool next_may_begin =
        next != nullptr && next->placed == 0 && progress.let_next == progress.launch->shape.blocks;
    if (next_may_begin && draw(kOneInBeginsEarly)) {
      hold_up(progress);
      place_clusters(*next);
    }
    if (in_round_.empty() && late_.empty()) {  // only the clock can change anything
      if (alarms_.empty()) throw Fault("nobody can go on: " + standing());
      round_ = std::max(round_, alarms_.front().round);
      nanoseconds_ += kFirstLeapNanoseconds << std::min(quiet_rounds, kMostDoublings);
    }
    ring_alarms();
    // Who is woken in this round has its turn in the next.
    std::vector<Warp*> round = std::exchange(in_round_, {});
    const std::size_t first = round.empty() ? 0 : random_() % round.size();
    for (std::size_t i = 0; i < round.size(); ++i) {
      Warp& warp = *round[(first + i) % round.size()];
      if (warp.held_up > 0) {
        --warp.held_up;
        in_round_.push_back(&warp);
        continue;
      }
      turn(warp);
      if (!fault_.empty()) throw Fault(fault_);
      if (!late_.empty() && draw(kOneInLands)) land_some();
    }
    if (round.empty() && !late_.empty()) land_some();
    ++round_;
    quiet_rounds = events == events_ ? quiet_rounds + 1 : 0;
    events = events_;
    nanoseconds_ += kRoundNanoseconds << std::clamp(quiet_rounds - kPatientRounds, 0, kMostDoublings);
    if (quiet_rounds > kHopelessRounds) throw Fault("nobody gets on: " + standing());
  }
  const auto is_too_late = [&](const LateCopy& copy) { return copy.block->launch == &progress; };
  if (std::erase_if(late_, is_too_late) > 0 && !order_given_up_)
    throw Fault("the blocks ended before copies into their shared memory had landed");
}

/// Lanes that are woken meanwhile go on as well; the warp stays in the rounds if any has rested only.
void Scheduler::turn(Warp& warp) {
  warp.patience = static_cast<int>(random_() % kLongestTurn);
  if (draw(kOneInChangesEagerness)) warp.eagerness = static_cast<Eagerness>(random_() % 3);
  do_put_off(warp);
  for (bool again = true; again;) {
    again = false;
    for (Lane& lane : warp.lanes) {
      if (lane.done || lane.asleep || lane.resting) continue;
      running_ = &lane;
      lane.fiber = std::move(lane.fiber).resume();
      running_ = nullptr;
      again = true;
      if (!fault_.empty()) return;
    }
  }
  warp.in_round = false;
  for (Lane& lane : warp.lanes)
    if (std::exchange(lane.resting, false)) warp.in_round = true;
  if (!warp.in_round) return;
  in_round_.push_back(&warp);
  if (draw(kOneInHeldUp)) warp.held_up = static_cast<unsigned>(random_() % kLongestHeldUp);
}

void Scheduler::land_some() {
  for (std::size_t count = random_() % late_.size() + 1; count > 0; --count) {
    LateCopy& copy = late_[random_() % late_.size()];
    if (copy.write)
      copy.write();
    else
      std::memcpy(copy.destination, copy.source != nullptr ? copy.source : copy.words, copy.bytes);
    const auto place = static_cast<std::size_t>(copy.destination - copy.block->shared);
    for (std::size_t i = place / kFencedBytes; i * kFencedBytes < place + copy.bytes; ++i)
      copy.block->unfenced[i] = nullptr;
    copy.barrier->bytes -= copy.bytes;
    next_phase_if_complete(*copy.barrier);
    copy = std::move(late_.back());
    late_.pop_back();
  }
}

void Scheduler::ring_alarms() {
  for (; !alarms_.empty() && alarms_.front().round <= round_; alarms_.pop_front()) {
    const Alarm& alarm = alarms_.front();
    if (alarm.lane->asleep && alarm.lane->sleeps == alarm.sleep) wake(*alarm.lane);
  }
}

/// Where the first warps are that have not come to their end.
std::string Scheduler::standing() const {
  constexpr int kMost = 12;
  std::string text;
  int said = 0;
  for (const auto& block : blocks_)
    for (const Warp& warp : block->warps) {
      const auto left =
          std::count_if(warp.lanes.begin(), warp.lanes.end(), [](const Lane& lane) { return !lane.done; });
      if (left == 0) continue;
      if (++said > kMost) return text + ", and others";
      const Place& place = warp.lanes.front().place;
      text += (said > 1 ? ", " : "") + std::string("warp ") + std::to_string(place.thread / kWarp) +
              " of block " + std::to_string(place.block) + " (" + std::to_string(left) + " lanes left, " +
              std::to_string(warp.arrived) + " at " +
              (warp.instruction == nullptr ? "no instruction of the warp" : warp.instruction) + ")";
    }
  return text;
}

}  // namespace headroom::emulated
