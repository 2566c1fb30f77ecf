// The pair form in bf16.
#include "fused/launch_pair.cuh"

namespace headroom::fused {

template struct Pair<Bf16>;

}  // namespace headroom::fused
