#include "tiled/instances.cuh"

namespace headroom::tiled {

std::optional<Kernel> find_kernel_bf16(const Tiling& tiling, bool relu) {
  return find_kernel<machine::Bf16>(tiling, relu);
}

}  // namespace headroom::tiled
