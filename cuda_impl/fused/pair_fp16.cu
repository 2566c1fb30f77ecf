// The pair form in fp16.
#include "fused/launch_pair.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Pair<Fp16>;

}  // namespace headroom::fused
