#include "tiled/instances.cuh"

namespace headroom::tiled {

std::optional<Kernel> find_relu_kernel_fp16(const Tiling& tiling) {
  return find_relu_kernel<machine::Fp16>(tiling);
}

}  // namespace headroom::tiled
