// `cuda-layered`: one hand-written kernel for each operation of the step, the step captured in a CUDA graph.
//
// The readable starting point of our strategies: any shape, sm_80 and newer, no vendor library.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom {

/// Why CUDA device `device` cannot run cuda-layered; nullopt if it can.
std::optional<std::string> layered_unavailable(int device);

/// `devices`: of each rank, where the workload has several; their gradients are summed by NCCL (ranks/nccl.h).
/// Throws UnsupportedError with layered_unavailable()'s reason or where there is no NCCL, InputError if the data does not
/// fit the workload, OutOfMemoryError.
std::unique_ptr<Trainer> make_layered_trainer(const Workload& workload, Precision precision,
                                              const DatasetView& data, const Parameters& initial, int device,
                                              const std::vector<int>& devices = {});

}  // namespace headroom
