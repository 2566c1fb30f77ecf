// A thread block's list of tasks as its threads walk through it, step after step, and how a task says that it is done. For every kernel
// of cuda-tiled.
#pragma once

#include <cstring>

#include "machine/memory.cuh"
#include "machine/peers.cuh"
#include "machine/release.cuh"
#include "machine/thread.cuh"
#include "tiled/arguments.h"

namespace headroom::tiled {

/// Where in its list a thread is. kAhead: the next task is asked for a task ahead.
template <bool kAhead>
class List {
 public:
  MACHINE_DEVICE List(const Arguments& a, int first, int stride)
      : tasks_(a.tasks),
        begin_(a.first_task[machine::block_index()] + first),
        end_(a.first_task[machine::block_index() + 1]),
        stride_(stride),
        next_(begin_) {
    if constexpr (kAhead) load();
  }
  MACHINE_DEVICE int index() const { return at_; }  // of the task that take() gave
  /// The next task of this step; the one behind it, or the first again, is on its way.
  MACHINE_DEVICE Task take() {
    if constexpr (!kAhead) load();
    Task task;
    memcpy(&task, words_, sizeof task);
    at_ = next_;
    next_ = at_ + stride_ < end_ ? at_ + stride_ : begin_;
    if constexpr (kAhead) load();
    return task;
  }
  MACHINE_DEVICE bool step_ends() const { return next_ == begin_; }

 private:
  MACHINE_DEVICE void load() {
    const auto* words = reinterpret_cast<const uint4*>(tasks_ + next_);
#pragma unroll
    for (int i = 0; i < 3; ++i) words_[i] = machine::load_constant16(words + i);
  }
  const Task* tasks_;
  int begin_, end_, stride_, next_, at_ = 0;
  uint4 words_[3];
};

/// The steps of a launch, and what changes from one to the next.
struct StepPlace {
  int of_launch = 0, parity, batch;
  MACHINE_DEVICE explicit StepPlace(const Arguments& a)
      : parity(a.parity), batch(static_cast<int>(a.first_step % a.batches)) {}
  MACHINE_DEVICE void advance(const Arguments& a) {
    ++of_launch;
    parity ^= 1;
    if (++batch == a.batches) batch = 0;
  }
};

/// Where among a rank's counters that of all ranks lies to which a step of the launch adds.
MACHINE_DEVICE std::int64_t place_of_shared(const Arguments& a, int counter, int step_of_launch) {
  const int copy = copy_of_counter(a.ranks.steps_before + static_cast<std::uint64_t>(step_of_launch));
  return std::int64_t{kCounterStride} * (counter + copy * a.ranks.counters_of_copy);
}

/// This warpgroup is done with its part of the task, as far as `first` to `last` of its signals say so: what its threads have written,
/// and what the copy engine has, is there for all of this GPU who see the counters. kRanked: peers add to some of them as well.
template <bool kRanked>
MACHINE_DEVICE void signal(const Arguments& a, const Task& task, int step_of_launch, int first, int last) {
  machine::fence_release_gpu();
#pragma unroll
  for (int i = 0; i < 3; ++i)
    if (i >= first && i <= last && task.signals[i] >= 0) {
      if (kRanked && i >= kFirstOfAllRanks)
        machine::add_relaxed_sys(a.counters + place_of_shared(a, task.signals[i], step_of_launch), 1u);
      else
        machine::add_relaxed_gpu(a.counters + std::int64_t{kCounterStride} * task.signals[i], 1u);
    }
}

MACHINE_DEVICE bool is_weight_gradient(const Task& task) {
  return task.form == Form::kWeightGradient || task.form == Form::kWeightGradientPart;
}

/// A value that is known when a kernel is compiled, as an argument.
template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};

/// The work of a task whose form a kernel is compiled for; of one whose form it never meets, nothing, and nobody asks.
template <KernelRules kRules, Form kForm, class Work>
MACHINE_DEVICE void if_it_may_come(const Work& work) {
  if constexpr (kRules.may_have(kForm))
    work();
  else
    __builtin_unreachable();
}

}  // namespace headroom::tiled
