#include "device/profiler_range.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

#include <optional>

namespace headroom {

std::function<void(const std::string& name)> profiler_ranges() {
  return [open = std::optional<nvtxRangeId_t>()](const std::string& name) mutable {
    if (open) nvtxRangeEnd(*open);
    open.reset();
    if (!name.empty()) open = nvtxRangeStartA(name.c_str());
  };
}

}  // namespace headroom
#else

namespace headroom {

std::function<void(const std::string& name)> profiler_ranges() { return nullptr; }

}  // namespace headroom
#endif
