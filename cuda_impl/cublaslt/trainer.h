// `cublaslt-graph`: the vendor's products with their epilogues, and no framework; the step in a CUDA graph.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom {

/// How a captured step is laid out; the result is the same.
struct CublasltPlan {
  int side_streams =
      0;  ///< 0, 1 (all that the chain of activations does not wait for) or 2 (biases and loss apart)
  bool masks_in_product =
      false;  ///< ReLU's derivative in the product's epilogue instead of a pass of its own
};

/// Why CUDA device `device` cannot run it, or the library is missing; nullopt if all is there.
std::optional<std::string> cublaslt_unavailable(int device);

/// Measures the plans and keeps the fastest, unless one is given. Throws UnsupportedError with
/// cublaslt_unavailable()'s reason, InputError if the data does not fit the workload, OutOfMemoryError.
std::unique_ptr<Trainer> make_cublaslt_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               std::optional<CublasltPlan> plan = std::nullopt);

}  // namespace headroom
