// `libtorch-graph`: libtorch-eager's step, captured in a CUDA graph and replayed.
#pragma once

#include <memory>

#include "core/dataset_view.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom::libtorch {

std::unique_ptr<Trainer> make_graph(const Workload& workload, Precision precision, const DatasetView& data,
                                    const Parameters& initial, int device);

}  // namespace headroom::libtorch
