#include "tiled_instances.h"

namespace headroom::emulated {

const void* tiled_fp32_instance(const tiled::KernelShape& shape) {
  return tiled_instance<tiled::PortableFp32, tiled::kPlainTilings>(shape);
}

}  // namespace headroom::emulated
