// How this backend keeps matrices on the device, and the counter that moves a captured step on to its batch.
//
// Rows are padded to a multiple of 8 values, so that every row starts on 16 bytes and kernels load and store
// whole vectors. The padding belongs to the row: kernels may write it and never let it reach a sum.
#pragma once

#include <cstdint>

namespace headroom::layered {

inline constexpr int kRowAlignment = 8;  // 16 bytes of 16-bit values

inline std::int64_t padded(std::int64_t columns) {
  return (columns + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}

/// A view of [rows, columns] values on the device, row-major; `pitch` (values from row to row) is
/// padded(columns).
template <class T>
struct Matrix {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t pitch = 0;
};

template <class T>
Matrix<T> matrix(T* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, padded(columns)};
}

/// Lives on the device. A step is captured once, so its kernels cannot be told the batch: they read it here.
struct StepState {
  long long step;   ///< the step being trained
  long long batch;  ///< step mod batches
};

}  // namespace headroom::layered
