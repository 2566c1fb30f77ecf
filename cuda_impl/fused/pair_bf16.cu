// The pair form in bf16.
#include "fused/launch_pair.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Pair<Bf16>;

}  // namespace headroom::fused
