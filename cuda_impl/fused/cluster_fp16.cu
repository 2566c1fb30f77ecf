// The cluster form in fp16.
#include "fused/launch_cluster.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Cluster<Fp16>;

}  // namespace headroom::fused
