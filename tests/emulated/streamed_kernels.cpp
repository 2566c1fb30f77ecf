#include "runtime.h"
#include "streamed/arguments.h"

namespace headroom::emulated {

/// All kernels of cuda-streamed that are launched by a pointer have the same one parameter.
std::function<void()> call_of(const void* kernel, const void* argument) {
  return call_with<streamed::Arguments>(kernel, argument);
}

}  // namespace headroom::emulated
