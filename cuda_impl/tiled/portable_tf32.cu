#include "tiled/portable_instances.cuh"

namespace headroom::tiled {

std::optional<Kernel> find_portable_kernel_tf32(const Tiling& tiling) {
  return find_portable_kernel<PortableTf32>(tiling);
}

}  // namespace headroom::tiled
