// What profilers (ncu, Nsight Systems) see of the work at hand.
#pragma once

#include <functional>
#include <string>

namespace headroom {

/// A function that ends the range that it began before, if any, and begins one of a name, unless that is empty. NVTX, in the
/// default domain. A range of the process, not of the thread: PyTorch launches from threads of its own. It costs nothing where no
/// profiler is. Null where this was built without NVTX, which not every CUDA toolkit has in it.
std::function<void(const std::string& name)> profiler_ranges();

}  // namespace headroom
