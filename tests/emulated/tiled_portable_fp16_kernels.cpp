#include "tiled_instances.h"

namespace headroom::emulated {

const void* tiled_portable_fp16_instance(const tiled::KernelShape& shape) {
  return tiled_instance<tiled::PortableFp16, tiled::kPortableTilings>(shape);
}

}  // namespace headroom::emulated
