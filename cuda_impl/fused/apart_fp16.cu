// Tiles' way and sums of weight gradients apart, in fp16.
#include "fused/launch_apart.cuh"

namespace headroom::fused {

template struct Apart<Fp16>;

}  // namespace headroom::fused
