// cuda-tiled with a folder for its kernels (kept_kernels.h), or on the GPU that the CPU plays with the instances of tests/emulated.
#pragma once

#include <memory>

#ifdef HEADROOM_EMULATED
#include "tiled/trainer.h"
#include "tiled_kernels.h"
#else
#include "kept_kernels.h"
#include "tiled/compiled.h"
#endif

namespace headroom {

inline std::unique_ptr<TiledTrainer> make_kept_tiled_trainer(const Workload& workload, Precision precision,
                                                             const DatasetView& data,
                                                             const Parameters& initial, int device,
                                                             const TiledOptions& options = {}) {
#ifdef HEADROOM_EMULATED
  return make_tiled_trainer(workload, precision, data, initial, device, options, emulated::tiled_kernel);
#else
  return make_compiled_tiled_trainer(workload, precision, data, initial, device, folder_of_kept_kernels(),
                                     options);
#endif
}

}  // namespace headroom
