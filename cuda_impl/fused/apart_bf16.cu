// Tiles' way and sums of weight gradients apart, in bf16.
#include "fused/launch_apart.cuh"

namespace headroom::fused {

template struct Apart<Bf16>;

}  // namespace headroom::fused
