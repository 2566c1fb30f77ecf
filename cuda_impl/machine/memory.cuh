// Loads and stores of shared and device memory. What other thread blocks read or write has its order (relaxed, acquire, release) and
// its scope (gpu) in the name; what has neither is ordinary memory of the thread block.
//
// A width is of bytes (`16`), or of the values of which each is read or written whole (`2x64`: two of 64 bits): the memory model
// knows a vector as its elements.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

// ---- addresses

MACHINE_DEVICE std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
MACHINE_DEVICE std::uint64_t global_address(const void* pointer) {
  return static_cast<std::uint64_t>(__cvta_generic_to_global(pointer));
}
/// Address of a block's dynamic shared memory where it has no other and is in no cluster: behind the 1 KB that the system
/// keeps (CUDA programming guide, compute capability 9.0). Who relies on it has to look first. A constant costs nothing,
/// where the address of a pointer is made anew wherever it is wanted, by reading the block's rank in its cluster.
constexpr std::uint32_t kSharedBegin = 1024;

// ---- shared memory, by pointers and by addresses. By address a load is volatile, so in order with all copies and barriers; and two
// accesses in the branches of a condition do not become one that finds out for itself, word by word, where it goes.

MACHINE_DEVICE uint4 load_shared16(const void* pointer) { return *static_cast<const uint4*>(pointer); }
MACHINE_DEVICE float4 load_shared_floats(const void* pointer) { return *static_cast<const float4*>(pointer); }
MACHINE_DEVICE void store_shared16(void* pointer, uint4 value) { *static_cast<uint4*>(pointer) = value; }
MACHINE_DEVICE uint4 load_shared16(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}
MACHINE_DEVICE float4 load_shared_floats(std::uint32_t address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address));
  return v;
}
MACHINE_DEVICE float load_shared_float(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
MACHINE_DEVICE std::uint32_t load_shared_word(std::uint32_t address) {
  std::uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
MACHINE_DEVICE void store_shared16(std::uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
MACHINE_DEVICE void store_shared_float(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// ---- wherever it is

MACHINE_DEVICE uint4 load_generic16(const void* pointer) { return *static_cast<const uint4*>(pointer); }
/// If it is wanted, else the value stays. One instruction with a condition of its own: behind a condition of C++ the compiler copies
/// what was loaded, and waits for it right there.
MACHINE_DEVICE void load_generic16_if(bool wanted, uint4& value, const void* pointer) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
               : "l"(pointer), "r"(static_cast<std::uint32_t>(wanted))
               : "memory");
}

// ---- device memory that nobody writes during a launch

MACHINE_DEVICE uint4 load_constant16(const void* address) {
  return __ldg(static_cast<const uint4*>(address));
}
MACHINE_DEVICE uint2 load_constant8(const void* address) { return __ldg(static_cast<const uint2*>(address)); }

// ---- device memory that other thread blocks write, behind a barrier: read from the L2. With kHere asked for where it is written,
// otherwise where the compiler likes: before its first use.

template <bool kHere = false>
MACHINE_DEVICE uint4 load_l2_16(const void* address) {
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
MACHINE_DEVICE float load_l2(const float* address) {
  if constexpr (kHere) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(address));
    return value;
  } else {
    return __ldcg(address);
  }
}
template <bool kHere = false>
MACHINE_DEVICE std::uint16_t load_l2(const std::uint16_t* address) {
  if constexpr (kHere) {
    std::uint16_t value;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(value) : "l"(address));
    return value;
  } else {
    return __ldcg(address);
  }
}
MACHINE_DEVICE std::uint64_t load_l2(const std::uint64_t* address) {
  return __ldcg(reinterpret_cast<const unsigned long long*>(address));
}

// ---- stores to device memory with a word to the L2 about whether the line will be wanted again (copy.cuh has the loads)

MACHINE_DEVICE void store_global16(void* address, uint4 value) { *static_cast<uint4*>(address) = value; }
#define MACHINE_STORE_HINTED(priority)                                                                   \
  MACHINE_DEVICE void store_global16_##priority(void* address, uint4 v) {                                \
    std::uint64_t policy;                                                                                \
    asm("createpolicy.fractional.L2::" #priority ".b64 %0;" : "=l"(policy));                             \
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(address), "r"(v.x), \
                 "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy)                                               \
                 : "memory");                                                                            \
  }
MACHINE_STORE_HINTED(evict_last)
MACHINE_STORE_HINTED(evict_first)
#undef MACHINE_STORE_HINTED
/// A policy that keeps a sixteenth of the lines and lets the others pass.
MACHINE_DEVICE std::uint64_t policy_keep_sixteenth() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.L2::evict_first.b64 %0, 0.0625;" : "=l"(policy));
  return policy;
}
/// Volatile, so in order with all copies and barriers; shared memory may be read before or after.
template <bool kKeepSixteenth>
MACHINE_DEVICE void store_global_floats(std::uint64_t address, float4 v) {
  if constexpr (kKeepSixteenth)
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(address), "f"(v.x),
                 "f"(v.y), "f"(v.z), "f"(v.w), "l"(policy_keep_sixteenth()));
  else
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w));
}

// ---- device memory that other thread blocks read and write meanwhile

namespace internal {
MACHINE_DEVICE std::uint64_t joined(std::uint32_t low, std::uint32_t high) {
  return low | static_cast<std::uint64_t>(high) << 32;
}
MACHINE_DEVICE uint4 words(std::uint64_t a, std::uint64_t b) {
  return make_uint4(static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32),
                    static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32));
}
}  // namespace internal

MACHINE_DEVICE std::uint32_t load_acquire_gpu(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
MACHINE_DEVICE std::uint32_t load_relaxed_gpu(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
MACHINE_DEVICE uint2 load_relaxed_gpu_2x32(const void* address) {
  uint2 words;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "l"(address)
               : "memory");
  return words;
}
MACHINE_DEVICE uint2 load_relaxed_gpu_64(const void* address) {
  std::uint64_t value;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return make_uint2(static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32));
}
MACHINE_DEVICE uint4 load_relaxed_gpu_2x64(const void* address) {
  std::uint64_t a, b;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(address) : "memory");
  return internal::words(a, b);
}
MACHINE_DEVICE uint4 load_relaxed_gpu_128(const void* address) {
  std::uint64_t a, b;
  asm volatile("{\n.reg .b128 v;\nld.relaxed.gpu.global.b128 v, [%2];\nmov.b128 {%0, %1}, v;\n}"
               : "=l"(a), "=l"(b)
               : "l"(address)
               : "memory");
  return internal::words(a, b);
}
/// If it is wanted, else the value stays; see load_generic16_if(). Of what somebody has seen to be there.
MACHINE_DEVICE void load_relaxed_gpu_128_if(bool wanted, uint4& value, const void* address) {
  std::uint64_t a = internal::joined(value.x, value.y), b = internal::joined(value.z, value.w);
  asm volatile(
      "{\n.reg .b128 v;\n.reg .pred p;\nmov.b128 v, {%0, %1};\nsetp.ne.u32 p, %3, 0;\n"
      "@p ld.relaxed.gpu.global.b128 v, [%2];\nmov.b128 {%0, %1}, v;\n}"
      : "+l"(a), "+l"(b)
      : "l"(address), "r"(static_cast<std::uint32_t>(wanted))
      : "memory");
  value = internal::words(a, b);
}

MACHINE_DEVICE void store_relaxed_gpu(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
MACHINE_DEVICE void store_relaxed_gpu_32(void* address, std::uint32_t value) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
MACHINE_DEVICE void store_relaxed_gpu_64(void* address, uint2 value) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(address), "l"(internal::joined(value.x, value.y))
               : "memory");
}
MACHINE_DEVICE void store_relaxed_gpu_128(void* address, uint4 value) {
  asm volatile(
      "{\n.reg .b128 v;\nmov.b128 v, {%1, %2};\nst.relaxed.gpu.global.b128 [%0], v;\n}" ::"l"(address),
      "l"(internal::joined(value.x, value.y)), "l"(internal::joined(value.z, value.w))
      : "memory");
}
/// Additions that nobody waits for (red).
MACHINE_DEVICE void add_release_gpu(std::uint32_t* address, std::uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
MACHINE_DEVICE void add_relaxed_gpu(std::uint32_t* address, std::uint32_t value) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
MACHINE_DEVICE void add_relaxed_gpu(std::uint64_t* address, std::uint64_t value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

}  // namespace headroom::machine
