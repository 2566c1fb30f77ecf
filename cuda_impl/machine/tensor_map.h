// Tensor maps: what the copy engine of sm_90 has to know of a matrix to fetch boxes of it (copy.cuh).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace headroom::machine {

enum class Element { kFp16, kBf16, kFp32 };
constexpr int bytes_of(Element element) { return element == Element::kFp32 ? 4 : 2; }
/// Of a box: a row is 128 bytes in shared memory, the width of the swizzle.
constexpr int box_columns(Element element) { return 128 / bytes_of(element); }

/// Of a matrix [rows, columns] that is row-major with `pitch` elements a row, `data` and rows on 16 bytes: boxes of `box_rows` (at most
/// 256) by box_columns(). A row of a box is 128 bytes, its 16-byte pieces swizzled as panels.h says; a box lies on a multiple of 1024
/// bytes of shared memory. Where it leaves the matrix, padding included, zeros are read and nothing is written. Throws
/// std::invalid_argument with the shape if the driver refuses it, std::runtime_error if the driver is older than CUDA 12.
CUtensorMap tensor_map(Element element, const void* data, std::int64_t rows, std::int64_t columns,
                       std::int64_t pitch, int box_rows);
/// The same of `slices` such matrices: boxes lie in one slice, and end with it. `slice_rows`: from one slice to the next, 0 where each lies
/// right behind the one before.
CUtensorMap tensor_map(Element element, const void* data, std::int64_t slices, std::int64_t rows,
                       std::int64_t columns, std::int64_t pitch, int box_rows, std::int64_t slice_rows = 0);
/// Of such matrices as panels of box_columns() columns: a box is `box_panels` panels next to each other, of `box_rows` rows each, one behind
/// the other in shared memory. One instruction fetches as much as it says, and takes as long for 16 KB as for 8 (docs/kernels/log/tiled.md).
/// What lies between the last column and the end of its panel is read, and has to be zero; a matrix with more columns than a panel has
/// rows that begin at multiples of 128 bytes. std::invalid_argument otherwise.
CUtensorMap tensor_map_of_panels(Element element, const void* data, std::int64_t slices, std::int64_t rows,
                                 std::int64_t columns, std::int64_t pitch, int box_rows, int box_panels,
                                 std::int64_t slice_rows = 0);

}  // namespace headroom::machine
