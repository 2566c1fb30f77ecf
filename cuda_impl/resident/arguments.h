// What a launch of the resident kernel is given, and how the host asks for one.
#pragma once

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
#include <cuda_runtime_api.h>
#endif

#include <cstdint>

#include "resident/plan.h"

namespace headroom::resident {

/// Everything a member reads that is not its own. Kernel parameter, so under 4 KB.
struct Arguments {
  Plan plan;
  float* parameters;  // flat, as core/parameters.h orders them; read at the start, written at the end
  float* mirror;      // the same order: weights as the owners of columns hold them at the end
  const unsigned char* x_rows;     // [batches] inputs in the order in which forward products read them
  const unsigned char* x_columns;  // [batches] the same in the order of the weight gradient
  const std::int32_t* labels;      // [batches * batch]
  float* losses;                   // ring of loss_slots, a power of two
  unsigned char* exchange;         // grid: tiles in flight; all bytes 0xff at the start
  std::uint32_t* free_steps;       // grid: [members] steps that a member is done with; zero at the start
  std::uint32_t* status;           // 0, or where a wait ran out (see describe_status)
  std::int64_t first_step, batches, loss_slots;
  std::int64_t wait_nanoseconds;  // longest wait
  std::int32_t steps;
  float update_factor;   // -learning rate / loss scale
  float gradient_scale;  // loss scale / batch size
};

static_assert(sizeof(Arguments) <= kArgumentsBytes && sizeof(Arguments) % 16 == 0);

/// The plan that a kernel's arguments hold. A kernel that is compiled for its network has an overload for its own arguments, whose plan
/// is a constant.
template <class AnyArguments>
__host__ __device__ constexpr const auto& plan_of(const AnyArguments& arguments) {
  return arguments.plan;
}

/// A wait that ran out: 1 + exchange (or kWaitFree, kWaitTeam), then member, warp.
inline constexpr std::uint32_t kWaitFree = 62, kWaitTeam = 63;
__host__ __device__ constexpr std::uint32_t wait_status(std::uint32_t exchange, std::uint32_t member,
                                                        std::uint32_t warp) {
  return 1 + exchange + (member << 8) + (warp << 24);
}

#ifndef HEADROOM_COMPILED_ALONE
/// The kernel for a precision and form; null is never returned.
const void* resident_kernel(Precision precision, Form form);
const void* resident_kernel_fp32(Form form);
const void* resident_kernel_tf32(Form form);
const void* resident_kernel_fp16(Form form);
const void* resident_kernel_bf16(Form form);

/// inputs [batches * batch, in] fp32 -> both orders, rounded to the precision, padding zero. Asynchronous.
void pack_inputs(const Plan& plan, Precision precision, const float* features, std::int64_t batches,
                 unsigned char* x_rows, unsigned char* x_columns, cudaStream_t stream);
#endif

}  // namespace headroom::resident
