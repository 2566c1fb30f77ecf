// The 16-bit copy of the weights, which products read.
#pragma once

#include "layered/formats.h"

namespace headroom::layered {

/// Four weights rounded as they enter a product.
template <class Format>
__device__ void store_weights(typename Format::Value* copy, float4 weights) {
  struct alignas(4 * sizeof(typename Format::Value)) Quad {
    typename Format::Value value[4];
  };
  *reinterpret_cast<Quad*>(copy) = {{Format::round_weight(weights.x), Format::round_weight(weights.y),
                                     Format::round_weight(weights.z), Format::round_weight(weights.w)}};
}

}  // namespace headroom::layered
