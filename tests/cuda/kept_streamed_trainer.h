// cuda-streamed with a folder for its kernels (kept_kernels.h), or on the GPU that the CPU plays with the instances of tests/emulated.
#pragma once

#include <memory>

#ifdef HEADROOM_EMULATED
#include "streamed/trainer.h"
#include "streamed_instances.h"
#else
#include "kept_kernels.h"
#include "streamed/compiled.h"
#endif
#include "number_of_variable.h"

namespace headroom {

/// For an optimizer with slots: what the L2 is told (streamed/slots.cuh) and how many tiles of masters out of 256 it is to hold, for timing one
/// beside the other: HEADROOM_STREAMED_TOLD, HEADROOM_STREAMED_HELD; not set: as the plan has it.
inline StreamedOptions options_of_variables() {
  return {.told = number_of_variable("HEADROOM_STREAMED_TOLD"),
          .held = number_of_variable("HEADROOM_STREAMED_HELD")};
}

inline std::unique_ptr<Trainer> make_kept_streamed_trainer(
    const Workload& workload, Precision precision, const DatasetView& data, const Parameters& initial,
    int device, const StreamedOptions& options = options_of_variables()) {
#ifdef HEADROOM_EMULATED
  return make_streamed_trainer(workload, precision, data, initial, device, options,
                               emulated::streamed_kernel);
#else
  return make_compiled_streamed_trainer(workload, precision, data, initial, device, folder_of_kept_kernels(),
                                        options);
#endif
}

}  // namespace headroom
