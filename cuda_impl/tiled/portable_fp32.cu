#include "tiled/portable_instances.cuh"

namespace headroom::tiled {

std::optional<Kernel> find_portable_kernel_fp32(const Tiling& tiling) {
  return find_portable_kernel<PortableFp32, kPlainTilings>(tiling);
}

}  // namespace headroom::tiled
