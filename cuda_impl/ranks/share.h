// The samples of one rank: of each joined batch its part, one behind the other.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dataset_view.h"
#include "core/workload.h"

namespace headroom::ranks {

/// What a trainer on one device reads as its data set, so that its batch s is the rank's part of joined batch s.
class Share {
 public:
  /// Copies. `rank` from 0 to workload.devices - 1.
  Share(const Workload& workload, const DatasetView& data, int rank);
  DatasetView view() const;

 private:
  int feature_count_;
  std::int64_t samples_;
  std::vector<float> features_, targets_;
  std::vector<std::int32_t> labels_;
};

}  // namespace headroom::ranks
