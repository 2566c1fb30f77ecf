#include "tiled_instances.h"

namespace headroom::emulated {

const void* tiled_tf32_instance(const tiled::KernelShape& shape) {
  return tiled_instance<tiled::PortableTf32, tiled::kPortableTilings>(shape);
}

}  // namespace headroom::emulated
