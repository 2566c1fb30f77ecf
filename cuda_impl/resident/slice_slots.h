// What the slice kernel is given besides where its optimizer has slots (momentum, Adam). Such a kernel is compiled for its network.
//
// Masters of a member that are in shared memory lie from its begin to `masters_end()`, its biases among them. Each slot of theirs lies
// in the same order, at the end of shared memory; behind them those of a first layer whose masters are in registers. What is held
// twice has its slots twice, and both copies stay the same bits.
#pragma once

#include "resident/slice_arguments.h"
#include "rules/optimizer.cuh"

namespace headroom::resident {

struct SlotArguments : SliceArguments {
  float* slots[2];                           // in the order of the parameters; null where there is none
  const rules::UpdateFactors* step_factors;  // of each step of the launch
  rules::UpdateFactors factors;  // what is the same in every step: all but `rate` and `inverse_root` of Adam
  float inverse_loss_scale;
  std::int32_t unused;
};

#ifdef SLICE_PLAN
__device__ constexpr const SlicePlan& plan_of(const SlotArguments&) { return kSlicePlan; }
#endif

/// Bytes of shared memory up to which masters lie.
__host__ __device__ constexpr int masters_end(const SlicePlan& plan) {
  return plan.last_bias_offset + (kMostClasses * 4 + 127) / 128 * 128;
}
/// Of a first layer in registers, bytes of each slot.
constexpr int first_slot_bytes(Precision precision, int team) {
  return precision == Precision::kFp32 ? 0 : kWarps * ((kInputPairs + team - 1) / team) * kMasterPair;
}

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
struct SlotPlan {
  SlicePlan slices;  ///< its shared_bytes with the slots
  int slots, threads;
};
/// Of the slice kernel as slice_step.cuh has it, with one slice a team. Throws UnsupportedError as make_slice_plan() does, and for what
/// it does not train: an activation but ReLU, a loss but cross-entropy.
SlotPlan make_slot_plan(const Workload& workload, Precision precision, Form form, const Limits& limits,
                        int team);
#endif

}  // namespace headroom::resident
