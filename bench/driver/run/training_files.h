// Data sets and parameters as the files that workers read.
#pragma once

#include <filesystem>
#include <string>

#include "core/parameters.h"
#include "core/workload.h"
#include "data/dataset.h"
#include "driver/results/results.h"
#include "worker/client.h"

namespace headroom {

/// One workload with one seed, ready for prepare(). The training samples are in the files only.
struct TrainingFiles {
  Workload workload;
  Workload joined;  ///< what the oracle trains
  DataFiles data;
  std::filesystem::path parameters;
  std::filesystem::path
      initial_state;  ///< the parameters and slots of zeros; the same file where there are none
  Dataset dataset;    ///< its training part is empty unless it was asked to be kept
  DatasetInfo info;
};

/// Builds data set and initial parameters and writes them into `folder`, which is made.
TrainingFiles write_training_files(const Workload& workload, std::int64_t least_train_bytes,
                                   const std::filesystem::path& folder, bool keep_training_samples);

/// Reads a flat fp32 file straight into a network of `widths`. Throws std::runtime_error.
Parameters read_parameters(const std::filesystem::path& file, const std::vector<int>& widths);

}  // namespace headroom
