// Warps that take their rows through all layers, in fp16.
#include "fused/launch_warps.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Warps<Fp16>;

}  // namespace headroom::fused
