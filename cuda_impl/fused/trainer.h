// `cuda-fused`: narrow networks and large batches; activations stay on the SM from the first layer to the last and back.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom {

/// Why CUDA device `device` cannot run cuda-fused; nullopt if it can.
std::optional<std::string> fused_unavailable(int device);

/// Why cuda-fused does not train this workload in this precision; nullopt if it does, on a device that
/// fused_unavailable() has nothing against.
std::optional<std::string> fused_refusal(const Workload& workload, Precision precision);

/// Throws UnsupportedError with the reason of one of these two, InputError if the data does not fit the workload,
/// OutOfMemoryError.
std::unique_ptr<Trainer> make_fused_trainer(const Workload& workload, Precision precision,
                                            const DatasetView& data, const Parameters& initial, int device);

}  // namespace headroom
