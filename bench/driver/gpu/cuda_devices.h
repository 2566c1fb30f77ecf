// Which CUDA devices there are, by the driver's library alone.
#pragma once

namespace headroom {

/// How many CUDA devices the driver shows, 0 where there is no driver. Asked in a child process, so that this
/// one never initialises CUDA.
int cuda_device_count();

}  // namespace headroom
