// What launchers ask about shapes: how many tiles, on how many multiprocessors, and whether matrices fit together.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "device/check.h"

namespace headroom::layered {

inline int multiprocessors() {
  int device = 0, count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

inline std::int64_t tiles(std::int64_t extent, int size) { return (extent + size - 1) / size; }

inline void require_shape(bool fits, const char* what, std::int64_t found, std::int64_t expected) {
  if (!fits)
    throw std::invalid_argument(std::string(what) + ": found " + std::to_string(found) + ", expected " +
                                std::to_string(expected));
}
inline void require_equal(const char* what, std::int64_t found, std::int64_t expected) {
  require_shape(found == expected, what, found, expected);
}

}  // namespace headroom::layered
