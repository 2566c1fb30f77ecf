// The data as a trainer sees them; data/dataset.h makes them.
#pragma once

#include <cstdint>
#include <string>

#include "core/workload.h"

namespace headroom {

/// What a trainer sees: rows already in training order.
struct DatasetView {
  const float* features = nullptr;       ///< [samples, feature_count], each in [0, 1]
  const std::int32_t* labels = nullptr;  ///< [samples], each in [0, classes); cross-entropy only
  const float* targets = nullptr;        ///< [samples, outputs]; the other losses only
  std::int64_t samples = 0;
  int feature_count = 0;

  std::int64_t batches(int batch_size) const { return samples / batch_size; }
};

/// Throws InputError, on behalf of `trainer`, unless the data are this workload's, with what its loss needs, and there is a batch of
/// them.
void require_data_for(const Workload& workload, const DatasetView& data, const std::string& trainer);

}  // namespace headroom
