#include "tiled/instances.cuh"

namespace headroom::tiled {

std::optional<Kernel> find_relu_kernel_bf16(const Tiling& tiling) {
  return find_relu_kernel<machine::Bf16>(tiling);
}

}  // namespace headroom::tiled
