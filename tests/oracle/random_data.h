// Small random data sets that a test owns: uniform features and labels, never zeros.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parameters.h"
#include "core/workload.h"
#include "data/dataset.h"

namespace headroom {

inline Workload small_workload(std::vector<int> widths, int batch_size, std::uint64_t seed = 1) {
  Workload workload;

  workload.model.widths = std::move(widths);
  workload.batch_size = batch_size;
  workload.seed = seed;
  workload.name = default_name(workload);
  return workload;
}

inline Dataset random_data(const Workload& workload, std::int64_t samples) {
  constexpr std::uint64_t kStream = 1000;
  Dataset data;
  data.feature_count = workload.inputs();
  data.outputs = workload.outputs();
  std::uint64_t counter = 0;
  const auto next = [&] { return philox(workload.seed, counter++, kStream).word[0]; };
  for (std::int64_t i = 0; i < samples * workload.inputs(); ++i) {
    data.train_features.push_back((static_cast<float>(next() >> 8) + 0.5f) * 0x1p-24f);
  }
  const auto symmetric = [&] { return (static_cast<float>(next() >> 8) + 0.5f) * 0x1p-23f - 1; };
  for (std::int64_t i = 0; i < samples; ++i) {
    if (workload.loss == Loss::kCrossEntropy)
      data.train_labels.push_back(
          static_cast<std::int32_t>(next() % static_cast<std::uint32_t>(workload.classes())));
    for (int output = 0; workload.loss != Loss::kCrossEntropy && output < workload.outputs(); ++output)
      data.train_targets.push_back(workload.loss == Loss::kMeanSquaredError ? symmetric()
                                                                            : static_cast<float>(next() % 2));
  }
  return data;
}

}  // namespace headroom
