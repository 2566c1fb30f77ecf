// `libtorch-eager`: the training step as a C++ user of PyTorch writes it.
#pragma once

#include <memory>

#include "core/dataset_view.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom::libtorch {

/// `device`: a CUDA device, or -1 for the CPU.
std::unique_ptr<Trainer> make_eager(const Workload& workload, Precision precision, const DatasetView& data,
                                    const Parameters& initial, int device);

}  // namespace headroom::libtorch
