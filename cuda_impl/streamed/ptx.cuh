// The machine's instructions that CUDA C++ has no plain words for, one small function each; those that are alike in cuda-resident
// and cuda-streamed are in machine/warp.cuh.
//
// Everything that depends on the machine is in these two files, so that the kernel's logic can also be compiled for the
// CPU against another version of them.
#pragma once

#include <cstdint>

#include "machine/wait.cuh"
#include "machine/warp.cuh"

#define STREAMED_DEVICE __device__ __forceinline__

namespace headroom::streamed {

using namespace machine;

/// Read anew at every call: otherwise the compiler works out every phase's places before the first step and keeps them in
/// local memory, from where they come slower than they are worked out.
STREAMED_DEVICE int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}
/// The same for all lanes, and the compiler knows it: loops that depend on it need no care for lanes that part.
STREAMED_DEVICE int uniform_warp_index() { return __shfl_sync(~0u, thread_index() / 32, 0); }
STREAMED_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }
STREAMED_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

/// Four words of shared memory for each warp, read and written where it is said.
STREAMED_DEVICE volatile int* words_of_warp() {
  __shared__ int words[64];
  return words + thread_index() / 32 * 4;
}

STREAMED_DEVICE void block_sync() { __syncthreads(); }
STREAMED_DEVICE bool block_sync_or(bool value) { return __any_sync(~0u, __syncthreads_or(value)) != 0; }
STREAMED_DEVICE void warp_sync() { __syncwarp(); }
STREAMED_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
STREAMED_DEVICE std::uint32_t shuffle_index(std::uint32_t value, int lane) {
  return __shfl_sync(~0u, value, lane);
}

// ---- shared and global memory. Global values that other thread blocks wrote are read from the L2.

STREAMED_DEVICE int shared_address(const void* pointer) {
  return static_cast<int>(__cvta_generic_to_shared(pointer));
}
/// By an address that is kept whole. Volatile, so in order with all copies and barriers.
STREAMED_DEVICE float4 load_shared_floats(int address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address));
  return v;
}
/// sum += a * b. Not moved across one another by the compiler, so that neighbours share an operand: a multiply-add reads three
/// registers, a scheduler two a cycle and what it has kept.
STREAMED_DEVICE void add_product(float& sum, float a, float b) {
  asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(a), "f"(b));
}
/// a + b, where it is written among products.
STREAMED_DEVICE float add_here(float a, float b) {
  float sum;
  asm volatile("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}
/// A value that the compiler keeps as it is, instead of working it out again from its parts wherever it is used.
STREAMED_DEVICE int kept_whole(int value) {
  asm("" : "+r"(value));
  return value;
}
/// The same for ptxas, which sees through the above: to it, this may be any lane's.
STREAMED_DEVICE int kept_by_lane(int value) { return __shfl_sync(~0u, value, thread_index() % 32); }
STREAMED_DEVICE std::uint64_t global_address(const void* address) {
  return static_cast<std::uint64_t>(__cvta_generic_to_global(address));
}
STREAMED_DEVICE std::uint64_t kept_whole(std::uint64_t value) {
  asm("" : "+l"(value));
  return value;
}
/// Volatile, so in order with all copies and barriers; shared memory may be read before or after.
/// One policy for the L2 that holds a sixteenth of the lines and lets the others pass.
STREAMED_DEVICE std::uint64_t policy_for_a_share() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.L2::evict_first.b64 %0, 0.0625;" : "=l"(policy));
  return policy;
}
template <bool kShareHeld>
STREAMED_DEVICE void store_global_floats(std::uint64_t address, float4 v) {
  if constexpr (kShareHeld)
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(address), "f"(v.x),
                 "f"(v.y), "f"(v.z), "f"(v.w), "l"(policy_for_a_share()));
  else
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w));
}
STREAMED_DEVICE uint4 load_shared16(const void* address) { return *static_cast<const uint4*>(address); }
STREAMED_DEVICE float4 load_shared_floats(const void* address) {
  return *static_cast<const float4*>(address);
}
STREAMED_DEVICE void store_shared16(void* address, uint4 value) { *static_cast<uint4*>(address) = value; }
/// By an address of shared memory: a store there and one to global memory in the two branches of a condition would otherwise become one that
/// finds out for itself, word by word.
STREAMED_DEVICE uint4 load_shared16(int address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}
STREAMED_DEVICE void store_shared16(int address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
STREAMED_DEVICE float load_shared_float(int address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
STREAMED_DEVICE void store_shared_float(int address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
/// From the L2. With kHere asked for where it is written, otherwise where the compiler likes: before its first use.
template <bool kHere = false>
STREAMED_DEVICE uint4 load_global16(const void* address) {
  if constexpr (kHere) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
  } else {
    return __ldcg(static_cast<const uint4*>(address));
  }
}
template <bool kHere = false>
STREAMED_DEVICE float load_global(const float* address) {
  if constexpr (kHere) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(address));
    return value;
  } else {
    return __ldcg(address);
  }
}
template <bool kHere = false>
STREAMED_DEVICE std::uint16_t load_global(const std::uint16_t* address) {
  if constexpr (kHere) {
    std::uint16_t value;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(value) : "l"(address));
    return value;
  } else {
    return __ldcg(address);
  }
}
STREAMED_DEVICE std::int64_t load_global(const std::uint64_t* address) {
  return static_cast<std::int64_t>(__ldcg(reinterpret_cast<const unsigned long long*>(address)));
}
STREAMED_DEVICE void store_global16(void* address, uint4 value) { *static_cast<uint4*>(address) = value; }

STREAMED_DEVICE std::uint32_t load_acquire(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
STREAMED_DEVICE void add_release(std::uint32_t* address, std::uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
STREAMED_DEVICE void add_relaxed(std::uint64_t* address, std::uint64_t value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
STREAMED_DEVICE std::int64_t nearest_integer(float value) { return __float2ll_rn(value); }

STREAMED_DEVICE void copy_async16(void* destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<std::uint32_t>(__cvta_generic_to_shared(destination))),
               "l"(source)
               : "memory");
}
/// By addresses: of shared memory, and of global memory.
STREAMED_DEVICE void copy_async16(int destination, std::uint64_t source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source) : "memory");
}
/// By some lanes, without a branch.
STREAMED_DEVICE void copy_async16_if(bool copies, int destination, std::uint64_t source) {
  asm volatile(
      "{.reg .pred copies; setp.ne.s32 copies, %2, 0; @copies cp.async.cg.shared.global [%0], [%1], 16;}" ::
          "r"(destination),
      "l"(source), "r"(static_cast<int>(copies))
      : "memory");
}
STREAMED_DEVICE void copy_async16_share_held(int destination, std::uint64_t source) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "l"(policy_for_a_share())
               : "memory");
}
// With a word to the L2 about whether the line will be wanted again. ptxas 13.0 makes malformed instructions of such copies if their
// policy is chosen at run time or if their destination is a register and a uniform one, so: one constant policy an instruction, and
// a destination that comes from kept_by_lane().
#define STREAMED_HINTED(name, priority)                                                                  \
  STREAMED_DEVICE void copy_async16_##name(int destination, const void* source) {                        \
    std::uint64_t policy;                                                                                \
    asm("createpolicy.fractional.L2::" priority ".b64 %0;" : "=l"(policy));                              \
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(destination),      \
                 "l"(source), "l"(policy)                                                                \
                 : "memory");                                                                            \
  }                                                                                                      \
  STREAMED_DEVICE void store_global16_##name(void* address, uint4 v) {                                   \
    std::uint64_t policy;                                                                                \
    asm("createpolicy.fractional.L2::" priority ".b64 %0;" : "=l"(policy));                              \
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(address), "r"(v.x), \
                 "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy)                                               \
                 : "memory");                                                                            \
  }
STREAMED_HINTED(held, "evict_last")
STREAMED_HINTED(passing, "evict_first")
#undef STREAMED_HINTED
STREAMED_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// All groups of this thread but the newest `kNewest` have landed.
template <int kNewest>
STREAMED_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}

/// Of two words in a row the 32 bits that follow the first `bits`.
STREAMED_DEVICE std::uint32_t bits_behind(std::uint32_t high, std::uint32_t low, int bits) {
  return __funnelshift_l(low, high, static_cast<unsigned>(bits));
}

/// The same, worked out where it is written: not once for a loop.
STREAMED_DEVICE std::uint32_t bits_behind_here(std::uint32_t high, std::uint32_t low, int bits) {
  std::uint32_t result;
  asm volatile("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(bits));
  return result;
}

/// The signed lower or upper half of a word.
STREAMED_DEVICE std::uint32_t extend_lower(std::uint32_t word) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, 0, 0x9910;" : "=r"(result) : "r"(word));
  return result;
}
STREAMED_DEVICE std::uint32_t extend_upper(std::uint32_t word) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, 0, 0xbb32;" : "=r"(result) : "r"(word));
  return result;
}

// ---- roundings of the precision contract

/// To about 2^-21, and without the slow paths that a step would have to fetch.
STREAMED_DEVICE float exponential(float value) { return __expf(value); }
STREAMED_DEVICE float logarithm(float value) { return __logf(value); }
STREAMED_DEVICE float divide(float a, float b) { return __fdividef(a, b); }

}  // namespace headroom::streamed
