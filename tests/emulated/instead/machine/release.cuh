// machine/release.cuh where the CPU plays the GPU, which does everything in order.
#pragma once

#include "machine.h"

namespace headroom::machine {

inline void fence_release_gpu() {}
inline void fence_acquire_gpu() {}
inline void fence_release_sys() {}
inline void fence_acquire_sys() {}
inline void fence_proxy_async_global() { emulated::fence_written(); }

}  // namespace headroom::machine
