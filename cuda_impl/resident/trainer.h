// `cuda-resident`: small networks whose weights stay in shared memory over thousands of steps in one launch.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "resident/sharing.h"

namespace headroom {

/// Why CUDA device `device` cannot run cuda-resident; nullopt if it can.
std::optional<std::string> resident_unavailable(int device);

/// For tests: everybody else takes the defaults.
struct ResidentOptions {
  enum class Form { kAny, kCluster, kGrid };
  enum class Kernel { kAny, kBlocks, kSlices, kPatches, kGeneral };
  Form form = Form::kAny;
  Kernel kernel = Kernel::kAny;
  /// Of the slice kernel over the grid, in 16 bits {1, 1} or {2, 2}. A team of 0: any. One that a precision has no
  /// kernels for is a std::invalid_argument.
  resident::Sharing sharing = {0, 0};
  double wait_seconds = 2;  ///< longest wait for other thread blocks; a longer one fails the training
  int lost_exchange = -1;   ///< an exchange that waits for more than is ever sent
};

/// Throws UnsupportedError with resident_unavailable()'s reason or with the bytes that do not fit, InputError if
/// the data does not fit the workload, OutOfMemoryError.
std::unique_ptr<Trainer> make_resident_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const ResidentOptions& options = {});

}  // namespace headroom
