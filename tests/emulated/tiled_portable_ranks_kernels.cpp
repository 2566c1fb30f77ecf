#include "tiled_rank_instances.h"

namespace headroom::emulated {
const void* tiled_portable_ranks_instance(const tiled::KernelShape& shape) {
  if (shape.precision == Precision::kFp32)
    return tiled_instance<tiled::PortableFp32, tiled::kPlainTilings, kRankInstances>(shape);
  return tiled_instance<tiled::PortableTf32, tiled::kPortableTilings, kRankInstances>(shape);
}

}  // namespace headroom::emulated
