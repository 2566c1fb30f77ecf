// The chain of networks up to 128 wide in bf16.
#include "fused/launch.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Chain<Bf16, 128>;

}  // namespace headroom::fused
