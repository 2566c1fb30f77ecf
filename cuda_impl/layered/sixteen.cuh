// Packing and instructions of the two 16-bit formats (fused/formats.cuh), by the formats of this backend.
#pragma once

#include "fused/formats.cuh"
#include "layered/formats.h"

namespace headroom::layered {

template <class Format>
struct Sixteen;
template <>
struct Sixteen<Fp16> : fused::Fp16 {};
template <>
struct Sixteen<Bf16> : fused::Bf16 {};

}  // namespace headroom::layered
