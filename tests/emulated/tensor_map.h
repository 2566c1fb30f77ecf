// What a tensor map holds on the machine that the CPU plays: its own fields, in the driver's opaque bytes.
#pragma once

#include <cstdint>
#include <cstring>

namespace headroom::emulated {

/// Matrices of values of 2 or 4 bytes, and the box of one of them that a copy takes.
struct TensorMap {
  unsigned char* data;
  std::int64_t rows, columns, row_bytes;
  int box_rows, box_columns, value_bytes;
  std::int64_t slices, slice_bytes;
  int box_panels;  ///< 0: not a map of panels; else the matrix is panels of box_columns, next to each other
  std::int64_t panels;

  /// Null outside of the matrix.
  void* element(std::int64_t slice, std::int64_t row, std::int64_t column) const {
    const bool inside =
        slice >= 0 && slice < slices && row >= 0 && row < rows && column >= 0 && column < columns;
    return inside ? data + slice * slice_bytes + row * row_bytes + value_bytes * column : nullptr;
  }
};

inline TensorMap read_tensor_map(const void* map) {
  TensorMap tensor;
  std::memcpy(&tensor, map, sizeof tensor);
  return tensor;
}

}  // namespace headroom::emulated
