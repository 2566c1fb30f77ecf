# cmake -DROOT=folder -DOUTPUT=file.cpp -P source_digest.cmake: a C++ file with the digest that choice/sources.h describes.
file(GLOB_RECURSE sources RELATIVE ${ROOT} ${ROOT}/bench/device/*.h ${ROOT}/bench/device/*.cpp ${ROOT}/cuda_impl/*.cu
  ${ROOT}/cuda_impl/*.cuh ${ROOT}/cuda_impl/*.h ${ROOT}/cuda_impl/*.cpp ${ROOT}/cuda_impl/*.txt ${ROOT}/cmake/cuda.cmake)
list(SORT sources)
set(listing "")
foreach(source ${sources})
  file(SHA256 ${ROOT}/${source} digest)
  string(APPEND listing "${source} ${digest}\n")
endforeach()
string(SHA256 digest "${listing}")
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
// Made by source_digest.cmake.
#include "choice/sources.h"

namespace headroom::choice {

std::string source_digest() { return "@digest@"; }

}  // namespace headroom::choice
]])
