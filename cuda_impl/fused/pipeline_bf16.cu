// The pipeline of owners in bf16.
#include "fused/launch_pipeline.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Pipeline<Bf16>;

}  // namespace headroom::fused
