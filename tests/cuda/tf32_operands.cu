#include "device/check.h"
#include "device/memory.h"
#include "tf32_operands.h"

namespace headroom {
namespace {

constexpr int kBlocks = 132, kThreads = 512, kRounds = 1000;

struct Random {
  std::uint32_t state;
  __device__ std::uint32_t operator()() {
    state = state * 1664525u + 1013904223u;
    return state ^ (state >> 15) * 2654435761u;
  }
};

/// A tf32 value: sign, exponent and ten bits, the lower 13 zero.
__device__ std::uint32_t random_tf32(Random& random, bool special) {
  const std::uint32_t bits = random(), kind = random();
  const std::uint32_t value = (bits & 0x807fe000u) | ((100 + (bits >> 24) % 50) << 23);
  if (!special) return value;
  if (kind % 2001 == 1) return 0x7f800000u;                              // infinity
  if (kind % 5 == 0) return 0;                                           // zero
  if (kind % 7 == 2) return value & 0x807fe000u;                         // subnormal
  if (kind % 11 == 3) return (value & 0x807fe000u) | (kind % 40) << 23;  // tiny
  return value;
}

__device__ void product(float (&sums)[4], const std::uint32_t (&v)[6]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]));
}

__global__ void count_changes(std::uint32_t seed, bool special, unsigned long long* changes) {
  Random random{seed + blockIdx.x * 977u + threadIdx.x * 7919u};
  unsigned long long found = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::uint32_t clean[6], dirty[6];
    for (int i = 0; i < 6; ++i) {
      clean[i] = random_tf32(random, special);
      dirty[i] = clean[i] | (random() & 0x1fffu);
    }
    float expected[4], sums[4];
    for (int i = 0; i < 4; ++i) expected[i] = sums[i] = __uint_as_float(0x3f000000u | (random() & 0xffffffu));
    product(expected, clean);
    product(sums, dirty);
    for (int i = 0; i < 4; ++i) found += __float_as_uint(expected[i]) != __float_as_uint(sums[i]);
  }
  atomicAdd(changes, found);
}

}  // namespace

std::int64_t sums_that_lower_bits_change(std::uint32_t seed, bool special) {
  DeviceBuffer<unsigned long long> changes(1);
  changes.fill_bytes(0);
  count_changes<<<kBlocks, kThreads>>>(seed, special, changes.data());
  CUDA_CHECK(cudaGetLastError());
  return static_cast<std::int64_t>(changes.to_host()[0]);
}

}  // namespace headroom
