#include "runtime.h"
#include "tiled/arguments.h"

namespace headroom::emulated {

/// cuda-tiled has one kernel that is launched by a pointer.
void call_kernel(const void* kernel, const void* argument) {
  reinterpret_cast<void (*)(tiled::Arguments)>(const_cast<void*>(kernel))(
      *static_cast<const tiled::Arguments*>(argument));
}

}  // namespace headroom::emulated
