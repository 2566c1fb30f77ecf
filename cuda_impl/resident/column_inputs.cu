// The inputs of the column kernel, in both orders in which it reads them.
#include <stdexcept>

#include "device/check.h"
#include "resident/column_arguments.h"
#include "resident/slice_formats.cuh"

namespace headroom::resident {
namespace {

/// One thread a lane of a tile [32 rows, 16 inputs], in the order in which instructions take it; x_columns: every 8x8 block transposed.
/// Of a batch [pairs of inputs] [halves] tiles.
template <class Format>
__global__ void pack_column_inputs(ColumnPlan plan, const float* features /* [batches * batch, in] */,
                                   std::int64_t tiles, unsigned char* x_rows, unsigned char* x_columns) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x, tile = thread / 32;
  if (tile >= tiles) return;
  const int lane = static_cast<int>(thread % 32), g = lane >> 2, t = lane & 3, in = plan.widths[0];
  const std::int64_t batch_tiles = std::int64_t{plan.shape.input_pairs} * plan.shape.halves;
  const std::int64_t batch = tile / batch_tiles;
  const int of_batch = static_cast<int>(tile % batch_tiles);
  const int first_row = of_batch % plan.shape.halves * kGroupRows, pair = of_batch / plan.shape.halves;
  typename Format::Values rows[2], columns[2];
  for (int slice = 0; slice < 2; ++slice) {
    float values[8];
    for (int i = 0; i < 8; ++i) {
      const int row = first_row + g + 8 * (i / 2), column = 16 * pair + 8 * slice + 2 * t + i % 2;
      const bool exists = row < plan.batch && column < in;
      values[i] = exists ? features[(batch * plan.batch + row) * in + column] : 0.0f;
    }
    rows[slice] = Format::round(values);
    columns[slice] = Format::transposed(rows[slice]);
  }
  const auto row_fragments = Format::row_fragments(rows[0], rows[1]);
  const auto column_fragments = Format::column_fragments(columns[0], columns[1]);
  for (int part = 0; part < 2; ++part) {
    const std::int64_t byte = tile * 1024 + part * 512 + lane * 16;
    *reinterpret_cast<uint4*>(x_rows + byte) = part_of(row_fragments, part);
    *reinterpret_cast<uint4*>(x_columns + byte) = part_of(column_fragments, part);
  }
}

template <class Format>
void pack_as(const ColumnPlan& plan, const float* features, std::int64_t batches, unsigned char* x_rows,
             unsigned char* x_columns, cudaStream_t stream) {
  const std::int64_t tiles = batches * plan.shape.input_pairs * plan.shape.halves;
  pack_column_inputs<Format><<<static_cast<unsigned>((tiles * 32 + 255) / 256), 256, 0, stream>>>(
      plan, features, tiles, x_rows, x_columns);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void pack_columns(const ColumnPlan& plan, Precision precision, const float* features, std::int64_t batches,
                  unsigned char* x_rows, unsigned char* x_columns, cudaStream_t stream) {
  if (precision == Precision::kFp16)
    return pack_as<SliceFp16>(plan, features, batches, x_rows, x_columns, stream);
  if (precision == Precision::kBf16)
    return pack_as<SliceBf16>(plan, features, batches, x_rows, x_columns, stream);
  throw std::logic_error("pack_columns: a precision without columns");
}

}  // namespace headroom::resident
