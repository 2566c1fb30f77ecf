// What the runtime has to be told of the kernels that it launches.
#pragma once

namespace headroom::emulated {

/// Calls `kernel`, which has one parameter, with a copy of `argument`. Each program of tests has its own.
void call_kernel(const void* kernel, const void* argument);

}  // namespace headroom::emulated
