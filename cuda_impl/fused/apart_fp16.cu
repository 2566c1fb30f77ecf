// Tiles' way and sums of weight gradients apart, in fp16.
#include "fused/launch_apart.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Apart<Fp16>;

}  // namespace headroom::fused
