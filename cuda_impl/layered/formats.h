// The four precisions as types: what is stored, and where it is rounded.
//
// A matrix product reads values of type Format::Value and sums in fp32. In fp32 and tf32 that is the fp32
// value itself (tf32 rounds when the product loads it); in fp16 and bf16 it is a 16-bit value rounded when it
// is stored. A bf16 weight is rounded with ties away from zero, all else with ties to even: so a later kernel
// can keep a master as two 16-bit halves (high = (bits + 0x8000) >> 16) and still train the same network.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

#include "core/workload.h"

namespace headroom::layered {

struct Fp32 {
  using Value = float;
  static constexpr Precision kPrecision = Precision::kFp32;
  static constexpr bool kTensorCores = false;
  __host__ __device__ static Value round(float value) { return value; }
  __host__ __device__ static Value round_weight(float value) { return value; }
};

struct Tf32 {
  using Value = float;
  static constexpr Precision kPrecision = Precision::kTf32;
  static constexpr bool kTensorCores = true;
  __host__ __device__ static Value round(float value) { return value; }
  __host__ __device__ static Value round_weight(float value) { return value; }
};

struct Fp16 {
  using Value = __half;
  static constexpr Precision kPrecision = Precision::kFp16;
  static constexpr bool kTensorCores = true;
  __host__ __device__ static Value round(float value) { return __float2half_rn(value); }
  __host__ __device__ static Value round_weight(float value) { return __float2half_rn(value); }
};

struct Bf16 {
  using Value = __nv_bfloat16;
  static constexpr Precision kPrecision = Precision::kBf16;
  static constexpr bool kTensorCores = true;
  __host__ __device__ static Value round(float value) { return __float2bfloat16_rn(value); }
  __host__ __device__ static Value round_weight(float value) {
    std::uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    // A NaN with a full mantissa would carry into the sign and come out as -0: keep it a NaN.
    const std::uint32_t high = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (bits + 0x8000u) >> 16;
    return __nv_bfloat16_raw{static_cast<unsigned short>(high)};
  }
};

__host__ __device__ inline float to_float(float value) { return value; }
__host__ __device__ inline float to_float(__half value) { return __half2float(value); }
__host__ __device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

}  // namespace headroom::layered
