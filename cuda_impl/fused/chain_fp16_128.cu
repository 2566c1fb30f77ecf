// The chain of networks up to 128 wide in fp16.
#include "fused/launch.cuh"
#include "machine/formats.cuh"

namespace headroom::fused {

template struct Chain<Fp16, 128>;

}  // namespace headroom::fused
