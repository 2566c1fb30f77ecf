// The machine's instructions that CUDA C++ has no plain words for, one small function each; those that are alike in cuda-resident
// and cuda-streamed are in machine/warp.cuh.
//
// Everything that depends on the machine is in these two files, so that the kernel's logic can also be compiled for the
// CPU against another version of them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "machine/wait.cuh"
#include "machine/warp.cuh"

#define RESIDENT_DEVICE __device__ __forceinline__
#define RESIDENT_DEVICE_CALLED inline __device__ __noinline__  // a place of its own, out of the way

namespace headroom::resident {

using namespace machine;

RESIDENT_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
RESIDENT_DEVICE std::uint32_t block_index() { return blockIdx.x; }
RESIDENT_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

RESIDENT_DEVICE void block_sync() { __syncthreads(); }
RESIDENT_DEVICE bool block_sync_or(bool value) { return __syncthreads_or(value) != 0; }
/// A barrier of `kCount` threads, by whole warps; 0 is block_sync()'s. Not `.aligned`, which promises that all of them
/// come to it at the same place of the program: synccheck holds a kernel to that.
template <int kCount>
RESIDENT_DEVICE void barrier_sync(int which) {
  asm volatile("barrier.sync %0, %1;" ::"r"(which), "n"(kCount) : "memory");
}
/// Registers of this group of four warps from here on, out of what the thread block was started with. Other machines
/// than sm_90a leave them as they are.
template <int kRegisters>
RESIDENT_DEVICE void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
RESIDENT_DEVICE void give_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
RESIDENT_DEVICE void warp_sync() { __syncwarp(); }
RESIDENT_DEVICE bool warp_all(bool value) { return __all_sync(~0u, value) != 0; }
RESIDENT_DEVICE bool warp_any(bool value) { return __any_sync(~0u, value) != 0; }
RESIDENT_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
RESIDENT_DEVICE std::uint32_t shuffle_from(std::uint32_t value, int lane) {
  return __shfl_sync(~0u, value, lane);
}
/// The same value in all lanes, which the compiler now knows.
RESIDENT_DEVICE int uniform(int value) { return __shfl_sync(~0u, value, 0); }
RESIDENT_DEVICE std::uint32_t warp_ballot(bool value) { return __ballot_sync(~0u, value); }

RESIDENT_DEVICE std::uint32_t cycles() {
  std::uint32_t now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
  return now;
}

RESIDENT_DEVICE void wait_cycles(std::uint32_t count) {
  for (const std::uint32_t begin = cycles(); cycles() - begin < count;) {
  }
}

// ---- shared and global memory

RESIDENT_DEVICE uint4 load_shared16(const void* address) { return *static_cast<const uint4*>(address); }
RESIDENT_DEVICE uint4 load_generic16(const void* address) { return *static_cast<const uint4*>(address); }
/// Of global memory that nobody writes during a launch.
RESIDENT_DEVICE uint4 load_constant16(const void* address) {
  return __ldg(static_cast<const uint4*>(address));
}
RESIDENT_DEVICE uint2 load_constant8(const void* address) {
  return __ldg(static_cast<const uint2*>(address));
}
/// Keeps a value's computation above this place: behind a barrier it would be waited for.
RESIDENT_DEVICE void compute_now(std::uint32_t& value) { asm volatile("" : "+r"(value)); }
RESIDENT_DEVICE void compute_now(int& value) { asm volatile("" : "+r"(value)); }
RESIDENT_DEVICE void compute_now(unsigned char*& value) { asm volatile("" : "+l"(value)); }

RESIDENT_DEVICE std::uint32_t load_acquire(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
/// Two 8-byte values, each read or written as one (the memory model knows a vector as its elements); no order.
RESIDENT_DEVICE uint4 load_packets(const void* address) {
  std::uint64_t a, b;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(address) : "memory");
  return make_uint4(static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32),
                    static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32));
}
RESIDENT_DEVICE uint2 load_packet(const void* address) {
  std::uint64_t value;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return make_uint2(static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32));
}
/// Two 4-byte values, each read as one.
RESIDENT_DEVICE uint2 load_words(const void* address) {
  uint2 words;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "l"(address)
               : "memory");
  return words;
}
RESIDENT_DEVICE void store_packets(void* address, uint4 value) {
  const std::uint64_t a = value.x | static_cast<std::uint64_t>(value.y) << 32;
  const std::uint64_t b = value.z | static_cast<std::uint64_t>(value.w) << 32;
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(address), "l"(a), "l"(b) : "memory");
}
/// 16 bytes as one value, read or written whole; no order.
RESIDENT_DEVICE uint4 load_whole16(const void* address) {
  std::uint64_t a, b;
  asm volatile("{\n.reg .b128 v;\nld.relaxed.gpu.global.b128 v, [%2];\nmov.b128 {%0, %1}, v;\n}"
               : "=l"(a), "=l"(b)
               : "l"(address)
               : "memory");
  return make_uint4(static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32),
                    static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32));
}
/// 16 bytes if they are wanted, else the value stays, of what somebody has seen to be there. One instruction with a
/// condition of its own: behind a condition of C++ the compiler copies what was loaded, and waits for it right there.
RESIDENT_DEVICE void load_if(bool wanted, uint4& value, const void* address) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
      : "l"(address), "r"(static_cast<std::uint32_t>(wanted))
      : "memory");
}
RESIDENT_DEVICE void load_generic_if(bool wanted, uint4& value, const void* address) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
               : "l"(address), "r"(static_cast<std::uint32_t>(wanted))
               : "memory");
}
RESIDENT_DEVICE void store_whole16(void* address, uint4 value) {
  const std::uint64_t a = value.x | static_cast<std::uint64_t>(value.y) << 32;
  const std::uint64_t b = value.z | static_cast<std::uint64_t>(value.w) << 32;
  asm volatile(
      "{\n.reg .b128 v;\nmov.b128 v, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], v;\n}" ::"l"(address),
      "l"(a), "l"(b)
      : "memory");
}
RESIDENT_DEVICE void store_packet(void* address, uint2 value) {
  const std::uint64_t a = value.x | static_cast<std::uint64_t>(value.y) << 32;
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(address), "l"(a) : "memory");
}
RESIDENT_DEVICE void store_word(void* address, std::uint32_t value) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
RESIDENT_DEVICE void store_release(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

RESIDENT_DEVICE std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

RESIDENT_DEVICE void copy_async16(void* destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(destination)), "l"(source)
               : "memory");
}
RESIDENT_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// All groups but the newest have landed.
RESIDENT_DEVICE void copy_async_wait_all_but_newest() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

/// Four 8x8 matrices of 16-bit values, transposed; `row` is the address of row lane % 8 of matrix lane / 8.
/// words[i] of lane 4g + t: rows 2t and 2t + 1 of column g of matrix i.
RESIDENT_DEVICE void load_matrices_transposed(std::uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}

/// The same as they lie: words[i] of lane 4g + t has columns 2t and 2t + 1 of row g.
RESIDENT_DEVICE void load_matrices(std::uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}
/// The other way round.
RESIDENT_DEVICE void store_matrices(void* row, const std::uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
RESIDENT_DEVICE void store_matrices_transposed(void* row, const std::uint32_t (&words)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}

// ---- clusters

RESIDENT_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// The address of the same place in another member's shared memory.
RESIDENT_DEVICE std::uint32_t remote_address(std::uint32_t local, std::uint32_t rank) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  return remote;
}
RESIDENT_DEVICE void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the cluster; a cluster_sync() must follow.
RESIDENT_DEVICE void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
RESIDENT_DEVICE void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Of this thread block.
RESIDENT_DEVICE void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
RESIDENT_DEVICE void barrier_arrive_remote(std::uint32_t remote_barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier)
               : "memory");
}
/// Whether the phase of this parity is complete; may wait a little itself.
RESIDENT_DEVICE bool barrier_try_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
/// 16 bytes into another member's shared memory, counted by that member's barrier.
RESIDENT_DEVICE void store_remote16(std::uint32_t remote, uint4 value, std::uint32_t remote_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          remote),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(remote_barrier)
      : "memory");
}
/// 8 bytes, the same.
RESIDENT_DEVICE void store_remote8(std::uint32_t remote, uint2 value, std::uint32_t remote_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(remote),
      "r"(value.x), "r"(value.y), "r"(remote_barrier)
      : "memory");
}

/// A multiple of 16 bytes from global memory, counted by a barrier of this thread block.
RESIDENT_DEVICE void copy_bulk(void* destination, const void* source, std::uint32_t bytes,
                               std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(destination)),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
/// The same to the same place in several members of the cluster, one a bit of `members`, each counted by its own barrier.
/// As one copy where there is such an instruction that does not warn of being slow.
RESIDENT_DEVICE void copy_bulk_to_members(std::uint16_t members, void* destination, const void* source,
                                          std::uint32_t bytes, std::uint32_t barrier) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared_address(destination)),
      "l"(source), "r"(bytes), "r"(barrier), "h"(members)
      : "memory");
#else
  for (std::uint32_t member = 0; member < 16; ++member)
    if (members >> member & 1)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
              remote_address(shared_address(destination), member)),
          "l"(source), "r"(bytes), "r"(remote_address(barrier, member))
          : "memory");
#endif
}
/// Between ordinary accesses to shared memory, made visible by a barrier, and a bulk copy to the same place.
RESIDENT_DEVICE void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// The same for copies to other members.
RESIDENT_DEVICE void async_proxy_fence_everywhere() { asm volatile("fence.proxy.async;" ::: "memory"); }
/// As barrier_try_wait, for what came from this thread block.
RESIDENT_DEVICE bool barrier_try_wait_own(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// The upper 32 bits of both words together, shifted left. In C++ ptxas sees through the shift of `low` and takes three instructions.
template <int kBits>
RESIDENT_DEVICE std::uint32_t shift_joined(std::uint32_t high, std::uint32_t low) {
  std::uint32_t result;
  asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "n"(kBits));
  return result;
}

// ---- roundings of the precision contract

/// Ties away from zero, as the high halves of an exact split would be: a tie has its 16th bit set, and with the lowest
/// set as well it is none any more. Infinities and NaN stay what they are.
RESIDENT_DEVICE std::uint32_t pack_bf16_weights(float low, float high) {
  const auto without_tie = [](float value) {
    const std::uint32_t bits = float_to_bits(value);
    return bits_to_float(bits | (bits >> 15 & 1u));
  };
  return pack_bf16(without_tie(low), without_tie(high));
}
/// The same with two instructions less: with the lowest bit always set no tie is left, and nothing else is rounded differently,
/// but an infinity becomes a NaN. So the loss is NaN in the first step that multiplies an infinite weight. By the contract it may
/// be finite for that step: where ReLU cuts minus infinity off, or softmax does.
RESIDENT_DEVICE std::uint32_t pack_finite_bf16_weights(float low, float high) {
  return pack_bf16(bits_to_float(float_to_bits(low) | 1), bits_to_float(float_to_bits(high) | 1));
}
/// e to the power of `value` to about 2^-21; no denormal results.
RESIDENT_DEVICE float exponential(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value * 1.44269504f));
  return result;
}
/// The same with the cases that a loss does not need.
RESIDENT_DEVICE float exponential_checked(float value) { return __expf(value); }
RESIDENT_DEVICE float divide_checked(float value, float by) { return __fdividef(value, by); }
/// To about 2^-22, where neither `by` nor its reciprocal is denormal.
RESIDENT_DEVICE float divide(float value, float by) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(by));
  return value * reciprocal;
}
/// For two 16-bit values: all bits of those that are above zero.
RESIDENT_DEVICE std::uint32_t positive_fp16(std::uint32_t two) {
  return __hgt2_mask(*reinterpret_cast<const __half2*>(&two), __half2half2(__ushort_as_half(0)));
}
RESIDENT_DEVICE std::uint32_t positive_bf16(std::uint32_t two) {
  return __hgt2_mask(*reinterpret_cast<const __nv_bfloat162*>(&two),
                     __bfloat162bfloat162(__ushort_as_bfloat16(0)));
}

}  // namespace headroom::resident
