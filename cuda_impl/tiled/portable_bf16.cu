#include "tiled/portable_instances.cuh"

namespace headroom::tiled {

std::optional<Kernel> find_portable_kernel_bf16(const Tiling& tiling) {
  return find_portable_kernel<PortableBf16>(tiling);
}

}  // namespace headroom::tiled
