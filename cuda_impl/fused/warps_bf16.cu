// Warps that take their rows through all layers, in bf16.
#include "fused/launch_warps.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Warps<Bf16>;

}  // namespace headroom::fused
