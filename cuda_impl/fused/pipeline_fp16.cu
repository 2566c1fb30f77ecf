// The pipeline of owners in fp16.
#include "fused/launch_pipeline.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Pipeline<Fp16>;

}  // namespace headroom::fused
