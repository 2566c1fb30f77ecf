// What every trainer does with buffers: zeros to begin with, and rows copied between pitches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/check.h"
#include "device/memory.h"
#include "device/stream.h"

namespace headroom {

/// `size` values of which every byte is zero.
template <class T>
DeviceBuffer<T> zeros(std::int64_t size) {
  DeviceBuffer<T> buffer(size);
  buffer.fill_bytes(0);
  return buffer;
}

/// `rows` rows of `columns` floats, each side with its own pitch in floats. Asynchronous on `stream`.
inline void copy_rows(float* destination, std::int64_t destination_pitch, const float* source,
                      std::int64_t source_pitch, std::int64_t columns, std::int64_t rows, cudaMemcpyKind kind,
                      Stream& stream) {
  const auto bytes = [](std::int64_t values) { return static_cast<std::size_t>(values) * sizeof(float); };
  CUDA_CHECK(cudaMemcpy2DAsync(destination, bytes(destination_pitch), source, bytes(source_pitch),
                               bytes(columns), static_cast<std::size_t>(rows), kind, stream.get()));
}

}  // namespace headroom
