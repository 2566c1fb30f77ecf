// cuda-resident for tests: its kernel is compiled, into the folder of kept_kernels.h; on the GPU that the CPU plays it is one of those
// that tests/emulated has.
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "resident/trainer.h"
#ifdef HEADROOM_EMULATED
namespace headroom::emulated {
/// Throws std::logic_error if there is none for such a plan.
const resident::KernelMaker& resident_kernels();
}  // namespace headroom::emulated
#else
#include "kept_kernels.h"
#include "resident/compiled.h"
#endif

namespace headroom {

/// Unless a test asks for constants, slices have their plan as an argument: then networks share kernels.
inline std::unique_ptr<Trainer> make_resident_test_trainer(const Workload& workload, Precision precision,
                                                           const DatasetView& data, const Parameters& initial,
                                                           ResidentOptions options) {
  if (options.plan_form == resident::PlanForm::kChosen) options.plan_form = resident::PlanForm::kArgument;
#ifdef HEADROOM_EMULATED
  return make_resident_trainer(workload, precision, data, initial, 0, emulated::resident_kernels(), options);
#else
  return make_resident_trainer(workload, precision, data, initial, 0, folder_of_kept_kernels(), options);
#endif
}

/// By the first of the devices, or all ranks by one where there are fewer.
inline std::unique_ptr<Trainer> make_ranked_test_trainer(const Workload& workload, Precision precision,
                                                         const DatasetView& data, const Parameters& initial,
                                                         ResidentOptions options) {
  std::vector<int> devices;
  options.ranks_share_devices = device_missing(workload.devices - 1).has_value();
  for (int device = 0; device < workload.devices; ++device)
    devices.push_back(options.ranks_share_devices ? 0 : device);
#ifdef HEADROOM_EMULATED
  return make_resident_trainer(workload, precision, data, initial, devices, emulated::resident_kernels(),
                               options);
#else
  return make_resident_trainer(workload, precision, data, initial, devices, folder_of_kept_kernels(),
                               options);
#endif
}

}  // namespace headroom
