#include "ranks/share.h"

#include <algorithm>

namespace headroom::ranks {

Share::Share(const Workload& workload, const DatasetView& data, int rank)
    : feature_count_(data.feature_count),
      samples_(data.batches(workload.joined_batch_size()) * workload.batch_size) {
  // Rows of `columns` values each.
  const auto gather = [&](const auto* source, std::int64_t columns, auto& target) {
    if (source == nullptr) return;
    target.resize(static_cast<std::size_t>(samples_ * columns));
    const std::int64_t part = workload.batch_size * columns;
    for (std::int64_t batch = 0; batch * workload.batch_size < samples_; ++batch)
      std::copy_n(source + (batch * workload.devices + rank) * part, part, target.begin() + batch * part);
  };
  gather(data.features, data.feature_count, features_);
  gather(data.labels, 1, labels_);
  gather(data.targets, workload.outputs(), targets_);
}

DatasetView Share::view() const {
  const auto data_of = [](const auto& values) { return values.empty() ? nullptr : values.data(); };
  return {features_.data(), data_of(labels_), data_of(targets_), samples_, feature_count_};
}

}  // namespace headroom::ranks
