// Products of a warp on the tensor cores (mma): fp32 sums, 16-bit or tf32 factors. They are not volatile: the compiler may move and
// overlap them.
//
// c [16, 8]: lane 4g + t has rows g and g + 8, columns 2t and 2t + 1. Factors of 16 bits, a [16, 16] * b [16, 8], are words of two
// neighbours in k (columns of a, rows of b): a0 .. a3 are of rows g, g + 8, g, g + 8, k = 2t in the first two and 2t + 8 in the last
// two; b0, b1 are of column g, k = 2t and 2t + 8. Factors of tf32, a [16, 8] * b [8, 8], are a value a word, k = t and t + 4.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

// c += a * b

#define MACHINE_MMA(name, instruction)                                                                       \
  template <class Sums> /* float[4], or where four of them begin */                                          \
  MACHINE_DEVICE void name(Sums&& c, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, \
                           std::uint32_t b0, std::uint32_t b1) {                                             \
    asm(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                       \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                     \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                             \
  }
MACHINE_MMA(mma_fp16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
MACHINE_MMA(mma_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
MACHINE_MMA(mma_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
#undef MACHINE_MMA

// sums = start + a * b

#define MACHINE_MMA_FROM(name, type)                                                                         \
  MACHINE_DEVICE void name(float (&sums)[4], const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1,     \
                           float s0, float s1, float s2, float s3) {                                         \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                               \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                           \
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(s0), "f"(s1), "f"(s2), "f"(s3)); \
  }
MACHINE_MMA_FROM(mma_fp16_from, "f16")
MACHINE_MMA_FROM(mma_bf16_from, "bf16")
#undef MACHINE_MMA_FROM

}  // namespace headroom::machine
