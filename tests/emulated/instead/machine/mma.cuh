// Stands in for cuda_impl/machine/mma.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "matrices.h"

namespace headroom::machine {

#define EMULATED_MMA(name, depth, value)                                                         \
  template <class Sums>                                                                          \
  void name(Sums&& c, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,    \
            std::uint32_t b0, std::uint32_t b1) {                                                \
    emulated::Product mine{{a0, a1, a2, a3}, {b0, b1}, {c[0], c[1], c[2], c[3]}};                \
    emulated::multiply<depth>(#name, mine,                                                       \
                              [](std::uint32_t word, [[maybe_unused]] int i) { return value; }); \
    for (int i = 0; i < 4; ++i) c[i] = mine.c[i];                                                \
  }
EMULATED_MMA(mma_fp16, 16, fp16_value(word >> 16 * i & 0xffff))
EMULATED_MMA(mma_bf16, 16, bits_to_float((word >> 16 * i) << 16))
EMULATED_MMA(mma_tf32, 8, bits_to_float(word & ~0x1fffu))
#undef EMULATED_MMA

#define EMULATED_MMA_FROM(name, product)                                                                 \
  MACHINE_DEVICE void name(float (&sums)[4], const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, \
                           float s0, float s1, float s2, float s3) {                                     \
    float start[4] = {s0, s1, s2, s3};                                                                   \
    product(start, a[0], a[1], a[2], a[3], b0, b1);                                                      \
    std::copy(start, start + 4, sums);                                                                   \
  }
EMULATED_MMA_FROM(mma_fp16_from, mma_fp16)
EMULATED_MMA_FROM(mma_bf16_from, mma_bf16)
#undef EMULATED_MMA_FROM

}  // namespace headroom::machine
