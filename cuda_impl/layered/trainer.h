// `cuda-layered`: one hand-written kernel for each operation of the step, the step captured in a CUDA graph.
//
// The readable starting point of our strategies: any shape, sm_80 and newer, no vendor library.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom {

/// Why CUDA device `device` cannot run cuda-layered; nullopt if it can.
std::optional<std::string> layered_unavailable(int device);

/// Throws UnsupportedError with layered_unavailable()'s reason, InputError if the data does not fit the
/// workload, OutOfMemoryError.
std::unique_ptr<Trainer> make_layered_trainer(const Workload& workload, Precision precision,
                                              const DatasetView& data, const Parameters& initial, int device);

}  // namespace headroom
