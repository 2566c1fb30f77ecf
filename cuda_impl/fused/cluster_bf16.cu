// The cluster form in bf16.
#include "fused/launch_cluster.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Cluster<Bf16>;

}  // namespace headroom::fused
