// What a launch of the slice kernel is given, and how the host asks for one.
#pragma once

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
#include <vector>

#include "resident/sharing.h"
#endif

#include "resident/arguments.h"
#include "resident/slice_plan.h"

namespace headroom::resident {

struct SliceArguments {
  SlicePlan plan;
  float* parameters;  // flat, as core/parameters.h orders them; read at the start, written at the end
  float*
      mirror;  // the same order: weights as the owners of columns, and the last member, hold them at the end
  const unsigned char* x_rows;     // [batches] [slices] tiles
  const unsigned char* x_columns;  // the same with every block transposed, if the format's products want that
  const std::int32_t* labels;      // [batches * batch]
  float* losses;                   // ring of loss_slots, a power of two
  unsigned char* exchange;         // grid: tiles in flight; all bytes 0xff at the start
  std::uint32_t* status;           // 0, or where a wait ran out (see describe_status)
  std::int64_t first_step, batches, loss_slots;
  std::int64_t wait_nanoseconds;  // longest wait
  std::uint32_t slot_bytes;       // of one buffer of an exchange
  std::int32_t steps;
  std::int32_t lost_exchange;  // one that nobody publishes, for tests; else -1
  float update_factor;         // -learning rate / loss scale
  float gradient_scale;        // loss scale / batch size
  float* ahead;  // [members] tiles: the first layer's sums of the step after the last, if they are made ahead
  bool continues;  // whether they are of this launch's first step
};

#ifdef SLICE_PLAN
/// The plan of the one network that this is compiled for, out of the words that SLICE_PLAN holds (compiled/compiled.h). In a constant
/// bank: some of it is indexed at run time.
struct SlicePlanWords {
  std::uint32_t word[sizeof(SlicePlan) / sizeof(std::uint32_t)];
};
__constant__ constexpr SlicePlan kSlicePlan = __builtin_bit_cast(SlicePlan, SlicePlanWords{{SLICE_PLAN}});
__device__ constexpr const SlicePlan& plan_of(const SliceArguments&) { return kSlicePlan; }
#endif

#ifndef HEADROOM_COMPILED_ALONE
/// The ways to share over the grid that a precision has kernels for, in the order in which they are tried. In 16 bits teams of one slice
/// divide rows.
std::vector<Sharing> slice_sharings(Precision precision);
#endif

/// A kernel and what it was compiled for, written down where it is instantiated: a plan for anything else would send it
/// to places that nobody has.
struct SliceKernel {
  const void* function = nullptr;
  Form form;
  int pairs, team, own;
  int layers = 0;   // any
  int threads = 0;  // of a block
  bool whole = false;
  int ahead_slices = 0;
  int gram_teams = 0;

  bool takes(Precision precision, const SlicePlan& plan) const {
    return form == plan.form && pairs == plan.pairs && team == plan.team && own == plan.own &&
           (layers == 0 || layers == plan.layers) && whole == sums_whole(precision, plan) &&
           ahead_slices == headroom::resident::ahead_slices(plan) &&
           gram_teams == headroom::resident::gram_teams(plan);
  }
};
/// The kernel for a precision and plan. Throws std::invalid_argument if there is none.
SliceKernel slice_kernel(Precision precision, const SlicePlan& plan);
SliceKernel slice_kernel_fp32(int pairs, int team);
SliceKernel slice_kernel_tf32(Form form, int pairs, int layers, int team, int own);
SliceKernel slice_ahead_kernel_fp32(int team, int slices, int gram_teams);
SliceKernel slice_packed_kernel_tf32();
SliceKernel slice_whole_rows_kernel_tf32();
SliceKernel slice_wide_rows_kernel_tf32();
SliceKernel slice_whole_pair_kernel(Precision precision, int clusters);
SliceKernel slice_rows_kernel(Precision precision);
SliceKernel slice_turned_kernel(Precision precision);
SliceKernel slice_kernel_fp16(Form form, int pairs, int own, bool whole);
SliceKernel slice_kernel_bf16(Form form, int pairs, int own, bool whole);

#ifndef HEADROOM_COMPILED_ALONE
/// inputs [batches * batch, in] fp32 -> both orders, rounded to the precision, padding zero. Asynchronous.
void pack_slices(const SlicePlan& plan, Precision precision, const float* features, std::int64_t batches,
                 unsigned char* x_rows, unsigned char* x_columns, cudaStream_t stream);
#endif

}  // namespace headroom::resident
