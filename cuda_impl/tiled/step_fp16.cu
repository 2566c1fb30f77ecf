#include "tiled/instances.cuh"

namespace headroom::tiled {

std::optional<Kernel> find_kernel_fp16(const Tiling& tiling, bool relu) {
  return find_kernel<machine::Fp16>(tiling, relu);
}

}  // namespace headroom::tiled
