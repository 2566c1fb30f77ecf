#include "runtime.h"
#include "tiled/arguments.h"

namespace headroom::emulated {

/// cuda-tiled has one kernel that is launched by a pointer.
std::function<void()> call_of(const void* kernel, const void* argument) {
  return call_with<tiled::Arguments>(kernel, argument);
}

}  // namespace headroom::emulated
