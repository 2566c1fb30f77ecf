#include "tiled/instances.cuh"

namespace headroom::tiled {

std::optional<Kernel> find_other_kernel_bf16(const Tiling& tiling) {
  return find_other_kernel<machine::Bf16>(tiling);
}

}  // namespace headroom::tiled
