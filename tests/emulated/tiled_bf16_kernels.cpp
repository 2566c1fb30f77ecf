#include "tiled_instances.h"

namespace headroom::emulated {

const void* tiled_bf16_instance(const tiled::KernelShape& shape) {
  return tiled_instance<machine::Bf16, tiled::kTilings>(shape);
}

}  // namespace headroom::emulated
