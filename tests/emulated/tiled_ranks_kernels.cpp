#include "tiled_rank_instances.h"

namespace headroom::emulated {
const void* tiled_ranks_instance(const tiled::KernelShape& shape) {
  if (shape.precision == Precision::kFp16)
    return tiled_instance<machine::Fp16, tiled::kTilings, kRankInstances>(shape);
  return tiled_instance<machine::Bf16, tiled::kTilings, kRankInstances>(shape);
}

}  // namespace headroom::emulated
