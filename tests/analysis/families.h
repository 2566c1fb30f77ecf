// The families of the backends that made-up records name.
#pragma once

#include <map>
#include <string>

#include "core/record.h"

namespace headroom {

inline Family family_of(const std::string& backend) {
  static const std::map<std::string, Family> kFamilies = {
      {"oracle", Family::kReference},
      {"pytorch-eager", Family::kPytorch},
      {"pytorch-graph", Family::kPytorch},
      {"pytorch-compile", Family::kPytorch},
      {"pytorch-compile-graph", Family::kPytorch},
      {"libtorch-eager", Family::kLibtorch},
      {"libtorch-graph", Family::kLibtorch},
      {"libtorch-expert", Family::kLibtorch},
      {"jax-scan", Family::kJax},
      {"cublaslt-graph", Family::kVendor},
      {"cuda-layered", Family::kOurs},
      {"cuda-resident", Family::kOurs},
      {"cuda-fused", Family::kOurs},
      {"trainkernel", Family::kOther},
  };
  return kFamilies.at(backend);
}

}  // namespace headroom
