// Tiles' way and sums of weight gradients apart, in bf16.
#include "fused/launch_apart.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Apart<Bf16>;

}  // namespace headroom::fused
