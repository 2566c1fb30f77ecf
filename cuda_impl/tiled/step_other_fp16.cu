#include "tiled/instances.cuh"

namespace headroom::tiled {

std::optional<Kernel> find_other_kernel_fp16(const Tiling& tiling) {
  return find_other_kernel<machine::Fp16>(tiling);
}

}  // namespace headroom::tiled
