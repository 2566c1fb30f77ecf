// The headers that device code may include, as they were when this program was built: a build that was moved to a machine
// without the checkout compiles the same kernels. CMakeLists.txt lists them, embed.cmake puts them in.
#pragma once

#include <span>
#include <string_view>

namespace headroom::jit {

struct Source {
  enum class Origin {
    kOurs,     ///< of cuda_impl
    kStandIn,  ///< for a header of the standard library, which NVRTC has not
    kToolkit,  ///< of the CUDA toolkit that this program was built with; nvcc has its own
  };
  std::string_view name;  ///< as it is included: "fused/pipeline.cuh"
  std::string_view text;  ///< a zero follows
  Origin origin;
};
std::span<const Source> embedded_sources();

}  // namespace headroom::jit
