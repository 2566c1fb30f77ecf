// cuda-streamed, and for optimizers with slots cuda-streamed-compiled with a folder for its kernels (kept_kernels.h). What the L2 is told
// (streamed/slots.cuh) and how many tiles of masters out of 256 it is to hold, for timing one beside the other: HEADROOM_STREAMED_TOLD,
// HEADROOM_STREAMED_HELD; not set: as the plan has it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "kept_kernels.h"
#include "streamed/compiled/compiled.h"

namespace headroom {

inline int number_of_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? -1 : std::atoi(value);
}

inline std::unique_ptr<Trainer> make_kept_streamed_trainer(const Workload& workload, Precision precision,
                                                           const DatasetView& data, const Parameters& initial,
                                                           int device) {
  if (workload.optimizer.slots() == 0)
    return make_streamed_trainer(workload, precision, data, initial, device);
  auto trainer =
      make_compiled_streamed_trainer(workload, precision, data, initial, device, folder_of_kept_kernels(),
                                     {.told = number_of_variable("HEADROOM_STREAMED_TOLD"),
                                      .held = number_of_variable("HEADROOM_STREAMED_HELD")});
  std::fprintf(stderr, "%s: %s\n", workload.name.c_str(), trainer->note().c_str());
  return trainer;
}

}  // namespace headroom
