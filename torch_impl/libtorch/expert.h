// `libtorch-expert`: the training step written by hand in PyTorch's operations, as far as they go.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/dataset_view.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom::libtorch {

/// Why this PyTorch cannot train so in `precision`; nullopt if it can.
std::optional<std::string> expert_unavailable(Precision precision);

/// On the CPU (device -1) fp32 only, and without a graph.
std::unique_ptr<Trainer> make_expert(const Workload& workload, Precision precision, const DatasetView& data,
                                     const Parameters& initial, int device);

}  // namespace headroom::libtorch
