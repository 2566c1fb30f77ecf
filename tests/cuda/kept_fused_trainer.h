// cuda-fused with a folder for its kernels (kept_kernels.h), or on the GPU that the CPU plays with the instances of tests/emulated.
#pragma once

#include <memory>

#ifdef HEADROOM_EMULATED
#include "fused/trainer.h"
#include "fused_kernels.h"
#else
#include "fused/compiled.h"
#include "kept_kernels.h"
#endif

namespace headroom {

inline std::unique_ptr<Trainer> make_kept_fused_trainer(const Workload& workload, Precision precision,
                                                        const DatasetView& data, const Parameters& initial,
                                                        int device) {
#ifdef HEADROOM_EMULATED
  return make_fused_trainer(workload, precision, data, initial, device, [precision](const fused::Plan& plan) {
    return emulated::fused_kernel(plan, precision);
  });
#else
  return make_compiled_fused_trainer(workload, precision, data, initial, device, folder_of_kept_kernels());
#endif
}

}  // namespace headroom
