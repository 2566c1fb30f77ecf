#include "tiled_instances.h"

namespace headroom::emulated {

const void* tiled_fp16_instance(const tiled::KernelShape& shape) {
  return tiled_instance<machine::Fp16, tiled::kTilings>(shape);
}

}  // namespace headroom::emulated
