// cuda-fused-compiled with a folder for its kernels (kept_kernels.h).
#pragma once

#include <cstdio>
#include <memory>

#include "fused/compiled/compiled.h"
#include "kept_kernels.h"

namespace headroom {

inline std::unique_ptr<Trainer> make_kept_fused_trainer(const Workload& workload, Precision precision,
                                                        const DatasetView& data, const Parameters& initial,
                                                        int device) {
  auto trainer =
      make_compiled_fused_trainer(workload, precision, data, initial, device, folder_of_kept_kernels());
  std::fprintf(stderr, "%s: %s\n", workload.name.c_str(), trainer->note().c_str());
  return trainer;
}

}  // namespace headroom
