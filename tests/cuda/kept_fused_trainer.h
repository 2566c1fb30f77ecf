// cuda-fused-compiled with a folder for its kernels that a variable names, so that kernels compiled on a machine without a GPU
// run on one without that compiler: HEADROOM_TEST_CUBINS. Not set: kernels are kept nowhere.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "fused/compiled/compiled.h"

namespace headroom {

inline std::string folder_of_kept_kernels() {
  const char* folder = std::getenv("HEADROOM_TEST_CUBINS");
  return folder == nullptr ? "" : folder;
}

inline std::unique_ptr<Trainer> make_kept_fused_trainer(const Workload& workload, Precision precision,
                                                        const DatasetView& data, const Parameters& initial,
                                                        int device) {
  auto trainer =
      make_compiled_fused_trainer(workload, precision, data, initial, device, folder_of_kept_kernels());
  std::fprintf(stderr, "%s: %s\n", workload.name.c_str(), trainer->note().c_str());
  return trainer;
}

}  // namespace headroom
