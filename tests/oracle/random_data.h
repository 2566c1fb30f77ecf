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
  workload.name = default_name(widths, batch_size);
  workload.widths = std::move(widths);
  workload.batch_size = batch_size;
  workload.seed = seed;
  return workload;
}

inline Dataset random_data(const Workload& workload, std::int64_t samples) {
  constexpr std::uint64_t kStream = 1000;
  Dataset data;
  data.feature_count = workload.inputs();
  data.classes = workload.classes();
  std::uint64_t counter = 0;
  const auto next = [&] { return philox(workload.seed, counter++, kStream).word[0]; };
  for (std::int64_t i = 0; i < samples * workload.inputs(); ++i) {
    data.train_features.push_back((static_cast<float>(next() >> 8) + 0.5f) * 0x1p-24f);
  }
  for (std::int64_t i = 0; i < samples; ++i) {
    data.train_labels.push_back(
        static_cast<std::int32_t>(next() % static_cast<std::uint32_t>(workload.classes())));
  }
  return data;
}

}  // namespace headroom
