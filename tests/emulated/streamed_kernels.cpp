#include "runtime.h"
#include "streamed/arguments.h"

namespace headroom::emulated {

/// All kernels of cuda-streamed that are launched by a pointer have the same one parameter.
void call_kernel(const void* kernel, const void* argument) {
  reinterpret_cast<void (*)(streamed::Arguments)>(const_cast<void*>(kernel))(
      *static_cast<const streamed::Arguments*>(argument));
}

}  // namespace headroom::emulated
