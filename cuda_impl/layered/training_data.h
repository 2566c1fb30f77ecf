// A data set on the device, rounded once: the first product then reads what it would read anyway.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dataset_view.h"
#include "device/memory.h"
#include "device/stream.h"
#include "layered/kernels.h"

namespace headroom::layered {

template <class Format>
struct TrainingData {
  DeviceBuffer<typename Format::Value> inputs;  // [samples, padded(features)]
  DeviceBuffer<std::int32_t> labels;            // [samples]; none with a loss over targets
};

/// The first `samples` of `data`, staged in pieces. Waits until they are there.
template <class Format>
TrainingData<Format> upload(const DatasetView& data, std::int64_t samples, Stream& stream) {
  constexpr std::int64_t kStagedBytes = std::int64_t{64} << 20;
  const std::int64_t pitch = padded(data.feature_count);
  TrainingData<Format> result{DeviceBuffer<typename Format::Value>(samples * pitch),
                              DeviceBuffer<std::int32_t>(data.labels != nullptr ? samples : 0)};
  if (data.labels != nullptr) result.labels.copy_from({data.labels, static_cast<std::size_t>(samples)});
  const std::int64_t row_bytes = std::int64_t{data.feature_count} * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t rows_at_once = std::clamp<std::int64_t>(kStagedBytes / row_bytes, 1, samples);
  DeviceBuffer<float> staged(rows_at_once * data.feature_count);
  for (std::int64_t row = 0; row < samples; row += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, samples - row);
    CUDA_CHECK(cudaMemcpyAsync(staged.data(), data.features + row * data.feature_count,
                               static_cast<std::size_t>(rows * row_bytes), cudaMemcpyHostToDevice,
                               stream.get()));
    round_rows<Format>(staged.data(), matrix(result.inputs.data() + row * pitch, rows, data.feature_count),
                       stream);
    stream.synchronize();
  }
  return result;
}

}  // namespace headroom::layered
