// Which version of the kernels' sources this program was built from.
#pragma once

#include <string>

namespace headroom::choice {

/// SHA-256, as 64 digits, of the sources that decide the kernels' code: bench/device, cuda_impl and cmake/cuda.cmake.
std::string source_digest();

}  // namespace headroom::choice
