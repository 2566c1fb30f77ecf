// Copies of boxes of a matrix, where the CPU plays the GPU: PTX ISA 9.0, "Tensor copies" and "Swizzling modes".
#pragma once

#include <cstring>

#include "machine.h"
#include "tensor_map.h"

namespace headroom::emulated {

/// The byte of a box, which begins at a multiple of 1024, at which an element lies: rows of 128 bytes, in which pieces of 16
/// bytes are exchanged by the row's number.
inline std::uint32_t place_in_box(const TensorMap& tensor, int row, int column) {
  const auto linear = static_cast<std::uint32_t>(row * 128 + tensor.value_bytes * column);
  return linear ^ (linear >> 7 & 7) << 4;
}

/// A box by what element_of(row, column) in it says; what lies outside of the matrix is zero.
template <class Of>
void fill_box(const TensorMap& tensor, unsigned char* box, const Of& element_of) {
  for (int r = 0; r < tensor.box_rows; ++r)
    for (int c = 0; c < tensor.box_columns; ++c) {
      std::uint32_t value = 0;
      const auto size = static_cast<std::size_t>(tensor.value_bytes);
      if (const void* element = element_of(r, c); element != nullptr) std::memcpy(&value, element, size);
      std::memcpy(box + place_in_box(tensor, r, c), &value, size);
    }
}
inline void tensor_load(std::uint32_t shared, const void* map, int column, int row, int slice,
                        std::uint32_t barrier) {
  const TensorMap tensor = read_tensor_map(map);
  const auto bytes = static_cast<std::uint32_t>(tensor.box_rows * 128);
  if (shared % 1024 != 0) fault("a tensor copy to an address that is not a multiple of 1024 bytes");
  if (tensor.box_panels != 0) fault("a copy of a box by a tensor map of panels");
  unsigned char* box = shared_pointer(shared, bytes);
  write_later(shared, bytes, barrier, [=] {
    fill_box(tensor, box, [&](int r, int c) { return tensor.element(slice, row + r, column + c); });
  });
}
/// Panels of a box lie one behind the other.
inline void tensor_load_panels(std::uint32_t shared, const void* map, int row, int panel, int slice,
                               std::uint32_t barrier) {
  const TensorMap tensor = read_tensor_map(map);
  const auto panel_bytes = static_cast<std::uint32_t>(tensor.box_rows * 128);
  const std::uint32_t bytes = panel_bytes * static_cast<std::uint32_t>(tensor.box_panels);
  if (shared % 1024 != 0) fault("a tensor copy to an address that is not a multiple of 1024 bytes");
  if (tensor.box_panels == 0) fault("a copy of panels by a tensor map of boxes");
  unsigned char* box = shared_pointer(shared, bytes);
  write_later(shared, bytes, barrier, [=] {
    for (int p = 0; p < tensor.box_panels; ++p)
      fill_box(tensor, box + p * panel_bytes, [&](int r, int c) -> void* {
        unsigned char* first = panel + p < tensor.panels
                                   ? static_cast<unsigned char*>(tensor.element(slice, row + r, c))
                                   : nullptr;
        return first == nullptr ? nullptr : first + std::int64_t{panel + p} * 128;
      });
  });
}
/// What lies outside of the matrix is not written.
inline void tensor_store(const void* map, int column, int row, int slice, std::uint32_t shared) {
  const TensorMap tensor = read_tensor_map(map);
  if (shared % 1024 != 0) fault("a tensor copy from an address that is not a multiple of 1024 bytes");
  store_in_group(shared, static_cast<std::uint32_t>(tensor.box_rows * 128), [=](const unsigned char* box) {
    for (int r = 0; r < tensor.box_rows; ++r)
      for (int c = 0; c < tensor.box_columns; ++c)
        if (void* element = tensor.element(slice, row + r, column + c); element != nullptr)
          std::memcpy(element, box + place_in_box(tensor, r, c),
                      static_cast<std::size_t>(tensor.value_bytes));
  });
}

}  // namespace headroom::emulated
