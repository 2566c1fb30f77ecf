// Tensor maps: what the copy engine of sm_90 has to know of a matrix to fetch boxes of it.
#pragma once

#include <cuda.h>

#include "core/workload.h"
#include "layered/matrix.h"

namespace headroom::layered {

inline constexpr int kPanelColumns = 64;  // 128 bytes of 16-bit values, the width of the swizzle

/// Boxes of `box_rows` x 64 values, a row 128 bytes in shared memory, its 16-byte pieces swizzled. Where a box leaves
/// [rows, columns], padding included, zeros are read and nothing is written. fp16 or bf16; `data` on 16 bytes.
CUtensorMap tensor_map(Precision precision, const void* data, std::int64_t rows, std::int64_t columns,
                       std::int64_t pitch, int box_rows);

template <class Format>
CUtensorMap tensor_map(Matrix<const typename Format::Value> matrix, int box_rows) {
  return tensor_map(Format::kPrecision, matrix.data, matrix.rows, matrix.columns, matrix.pitch, box_rows);
}

}  // namespace headroom::layered
