// Packing and instructions of the two 16-bit formats (machine/formats.cuh), by the formats of this backend.
#pragma once

#include "layered/formats.h"
#include "machine/formats.cuh"

namespace headroom::layered {

template <class Format>
struct Sixteen;
template <>
struct Sixteen<Fp16> : machine::Fp16 {};
template <>
struct Sixteen<Bf16> : machine::Bf16 {};

}  // namespace headroom::layered
