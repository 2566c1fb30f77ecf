// cuda-tiled with a folder for its kernels (kept_kernels.h), or on the GPU that the CPU plays with the instances of tests/emulated.
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"

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

/// By the first of the devices, or all ranks by one where there are fewer.
inline std::unique_ptr<Trainer> make_kept_ranked_tiled_trainer(const Workload& workload, Precision precision,
                                                               const DatasetView& data,
                                                               const Parameters& initial,
                                                               TiledOptions options = {}) {
  std::vector<int> devices;
  options.ranks_share_devices = device_missing(workload.devices - 1).has_value();
  for (int device = 0; device < workload.devices; ++device)
    devices.push_back(options.ranks_share_devices ? 0 : device);
#ifdef HEADROOM_EMULATED
  return make_tiled_trainer(workload, precision, data, initial, devices, options, emulated::tiled_kernel);
#else
  return make_compiled_tiled_trainer(workload, precision, data, initial, devices, folder_of_kept_kernels(),
                                     options);
#endif
}

}  // namespace headroom
