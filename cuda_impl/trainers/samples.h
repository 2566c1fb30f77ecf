// The training samples on their way to a kernel's own layout on the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dataset_view.h"
#include "device/check.h"
#include "device/memory.h"
#include "device/stream.h"

namespace headroom {

inline constexpr std::int64_t kStagedBytes = std::int64_t{64} << 20;  ///< of features at once

/// The labels of the first `samples` samples, on the device.
inline DeviceBuffer<std::int32_t> labels_of(const DatasetView& data, std::int64_t samples) {
  DeviceBuffer<std::int32_t> labels(samples);
  labels.copy_from({data.labels, static_cast<std::size_t>(samples)});
  return labels;
}

/// pack(features, count, first) for all of `batches` batches in turn: `features` [count * batch_size, inputs] fp32 are those of batches
/// from `first` on, on the device until what pack() queues on `stream` is done.
template <class Pack>
void for_each_staged_batches(const DatasetView& data, std::int64_t batch_size, std::int64_t batches,
                             Stream& stream, const Pack& pack) {
  const std::int64_t batch_values = batch_size * data.feature_count;
  const std::int64_t at_once = std::clamp<std::int64_t>(
      kStagedBytes / (batch_values * static_cast<std::int64_t>(sizeof(float))), 1, batches);
  DeviceBuffer<float> staged(at_once * batch_values);
  for (std::int64_t first = 0; first < batches; first += at_once) {
    const std::int64_t count = std::min(at_once, batches - first);
    CUDA_CHECK(cudaMemcpyAsync(staged.data(), data.features + first * batch_values,
                               static_cast<std::size_t>(count * batch_values) * sizeof(float),
                               cudaMemcpyHostToDevice, stream.get()));
    pack(staged.data(), count, first);
    stream.synchronize();
  }
}

}  // namespace headroom
