// The inputs in the orders in which kernels read them.
#include <stdexcept>

#include "device/check.h"
#include "resident/block_arguments.h"
#include "resident/block_fma.cuh"
#include "resident/packed_tf32.cuh"
#include "resident/patch_arguments.h"
#include "resident/slice_arguments.h"
#include "resident/slice_formats.cuh"

namespace headroom::resident {
namespace {

/// One thread a lane of a pair of tiles, in the order in which instructions take them. x_columns: every 8x8 block
/// transposed, for products that take columns. by_cluster: rows for clusters that divide them, [4 clusters] [pairs]. as_told:
/// columns with their rows in the order in which such clusters read tiles from each other (slice_wide_rows.cuh).
template <class Format, bool kTransposes>
__global__ void pack_pairs(SlicePlan plan, const float* features /* [batches * batch, in] */,
                           std::int64_t pairs, unsigned char* x_rows, unsigned char* x_columns, bool turned,
                           bool by_cluster, bool as_told) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t pair = thread / 32;
  if (pair >= pairs) return;
  const int lane = static_cast<int>(thread % 32), g = lane >> 2, t = lane & 3, in = plan.widths[0];
  const std::int64_t batch = pair / plan.input_pairs;
  const auto feature = [&](int row, int column) {
    return row < plan.batch && column < in ? features[(batch * plan.batch + row) * in + column] : 0.0f;
  };
  typename Format::Values rows[2], columns[2];
  for (int slice = 0; slice < 2; ++slice) {
    const int first_column = static_cast<int>(pair % plan.input_pairs) * kPairColumns + slice * kSliceColumns;
    float row[8];
    for (int i = 0; i < 8; ++i) row[i] = feature(g + 8 * (i / 2), first_column + 2 * t + i % 2);
    rows[slice] = Format::round(row);
    columns[slice] = rows[slice];
    if (kTransposes) columns[slice] = Format::transposed(rows[slice]);
    if constexpr (std::is_same_v<Format, SliceTf32>)
      if (as_told)
        for (int i = 0; i < 8; ++i)
          columns[slice].word[i] = Format::rounded(feature(16 * (i / 4) + 4 * t + i % 4, first_column + g));
  }
  const auto row_fragments = Format::row_fragments(rows[0], rows[1]);
  // Turned masters' sums take one tile after the other.
  const auto column_fragments = turned ? Format::row_fragments(columns[0], columns[1])
                                       : Format::column_fragments(columns[0], columns[1]);
  for (int part = 0; part < 2 * Format::kParts; ++part) {
    const std::int64_t byte = pair * 2 * plan.tile + part * 512 + lane * 16;
    if constexpr (std::is_same_v<Format, SliceTf32>)
      if (by_cluster) {
        // What follows a cluster is what its eight rows have in both tiles: of row g columns 2t and 2t + 1 of each.
        const int first = 4 * (part >> 1) + (part & 1);
        const std::int64_t of_cluster =
            batch * plan.x_batch_bytes +
            (std::int64_t{part} * plan.input_pairs + pair % plan.input_pairs) * WholeRows::kInputPair +
            lane * 16;
        *reinterpret_cast<uint4*>(x_rows + of_cluster) = make_uint4(
            rows[0].word[first], rows[0].word[first + 2], rows[1].word[first], rows[1].word[first + 2]);
      }
    if (!by_cluster) *reinterpret_cast<uint4*>(x_rows + byte) = part_of(row_fragments, part);
    *reinterpret_cast<uint4*>(x_columns + byte) = part_of(column_fragments, part);
  }
}

/// The same of packed tiles: of a pair 16 bytes a lane of the one, of the other, and a word a lane of both.
__global__ void pack_packed_pairs(SlicePlan plan, const float* features /* [batches * batch, in] */,
                                  std::int64_t pairs, unsigned char* x_rows, unsigned char* x_columns) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t pair = thread / 32;
  if (pair >= pairs) return;
  const int lane = static_cast<int>(thread % 32), g = lane >> 2, t = lane & 3, in = plan.widths[0];
  const std::int64_t batch = pair / plan.input_pairs, begin = pair * 2 * kPackedTile;
  const auto feature = [&](int row, int column) {
    return row < plan.batch && column < in ? features[(batch * plan.batch + row) * in + column] : 0.0f;
  };
  for (int slice = 0; slice < 2; ++slice) {
    const int first_column = static_cast<int>(pair % plan.input_pairs) * kPairColumns + slice * kSliceColumns;
    float row[8];
    for (int i = 0; i < 8; ++i) row[i] = feature(g + 8 * (i / 2), first_column + 2 * t + i % 2);
    const SliceTf32::Values rows = SliceTf32::round(row);
    const auto store = [&](unsigned char* memory, const PackedTile& tile) {
      *reinterpret_cast<uint4*>(memory + begin + slice * 512 + lane * 16) = tile.words;
      *reinterpret_cast<std::uint32_t*>(memory + begin + 1024 + lane * 8 + slice * 4) = tile.last;
    };
    store(x_rows, PackedTf32::pack(rows));
    store(x_columns, PackedTf32::pack(SliceTf32::transposed(rows)));
  }
}

void pack_packed_pairs_as(const SlicePlan& plan, const float* features, std::int64_t batches,
                          unsigned char* x_rows, unsigned char* x_columns, cudaStream_t stream) {
  const std::int64_t pairs = batches * plan.input_pairs;
  pack_packed_pairs<<<static_cast<unsigned>((pairs * 32 + 255) / 256), 256, 0, stream>>>(
      plan, features, pairs, x_rows, x_columns);
  CUDA_CHECK(cudaGetLastError());
}

template <class Format, bool kTransposes>
void pack_pairs_as(const SlicePlan& plan, const float* features, std::int64_t batches, unsigned char* x_rows,
                   unsigned char* x_columns, cudaStream_t stream) {
  const std::int64_t pairs = batches * plan.input_pairs;
  const bool divides =
      Format::kPrecision == Precision::kTf32 && plan.form == Form::kCluster && plan.team > 1;  // rows
  pack_pairs<Format, kTransposes><<<static_cast<unsigned>((pairs * 32 + 255) / 256), 256, 0, stream>>>(
      plan, features, pairs, x_rows, x_columns, turns_masters(Format::kPrecision, plan.own),
      divides && plan.own == 1, divides && plan.own == 2);
  CUDA_CHECK(cudaGetLastError());
}

/// One thread two neighbouring columns of a row.
template <class Type>
__global__ void pack_patch_rows(PatchPlan plan, const float* features /* [batches * batch, in] */,
                                std::int64_t words, unsigned char* x_rows) {
  const std::int64_t word = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (word >= words) return;
  constexpr int kRowWords = kPatchInputs / 2;
  const int own = static_cast<int>(word % kRowWords) * 2;
  const int row = static_cast<int>(word / kRowWords % kGroupRows);
  const int member_column = static_cast<int>(word / kRowWords / kGroupRows % kPatchColumns);
  const std::int64_t batch = word / kRowWords / kGroupRows / kPatchColumns;
  const auto feature = [&](int of_member) {
    const int column = member_column * plan.column_inputs + of_member;
    return row < plan.batch && of_member < plan.column_inputs && column < plan.widths[0]
               ? features[(batch * plan.batch + row) * plan.widths[0] + column]
               : 0.0f;
  };
  reinterpret_cast<std::uint32_t*>(x_rows)[word] = Type::pack(feature(own), feature(own + 1));
}

template <class Type>
void pack_patches_as(const PatchPlan& plan, const float* features, std::int64_t batches,
                     unsigned char* x_rows, cudaStream_t stream) {
  const std::int64_t words = batches * plan.x_batch_bytes / 4;
  pack_patch_rows<Type>
      <<<static_cast<unsigned>((words + 255) / 256), 256, 0, stream>>>(plan, features, words, x_rows);
  CUDA_CHECK(cudaGetLastError());
}

/// One thread a packet: of a column rows r, r + 8, r + 16 and r + 24.
__global__ void pack_tiles(BlockPlan plan, const float* features /* [batches * batch, in] */,
                           std::int64_t packets, unsigned char* x_tiles) {
  const std::int64_t packet = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (packet >= packets) return;
  const int first_row = static_cast<int>(packet % kBlockRanks),
            own = static_cast<int>(packet / kBlockRanks % kBlockInputs);
  const std::int64_t tile = packet / (kBlockRanks * kBlockInputs);
  const int rank = static_cast<int>(tile % kBlockRanks), from = rank * plan.rank_inputs + own;
  const std::int64_t batch = tile / kBlockRanks;
  const auto feature = [&](int row) {
    return row < plan.batch && own < plan.rank_inputs && from < plan.widths[0]
               ? features[(batch * plan.batch + row) * plan.widths[0] + from]
               : 0.0f;
  };
  *reinterpret_cast<FourRows*>(x_tiles + tile * kBlockInputTile + packet_place(own, first_row)) = make_float4(
      feature(first_row), feature(first_row + 8), feature(first_row + 16), feature(first_row + 24));
}

}  // namespace

void pack_patches(const PatchPlan& plan, Precision precision, const float* features, std::int64_t batches,
                  unsigned char* x_rows, cudaStream_t stream) {
  if (precision == Precision::kFp16)
    return pack_patches_as<Fp16Type>(plan, features, batches, x_rows, stream);
  pack_patches_as<Bf16Type>(plan, features, batches, x_rows, stream);
}

void pack_blocks(const BlockPlan& plan, const float* features, std::int64_t batches, unsigned char* x_tiles,
                 cudaStream_t stream) {
  const std::int64_t packets = batches * plan.x_batch_bytes / 16;
  pack_tiles<<<static_cast<unsigned>((packets + 255) / 256), 256, 0, stream>>>(plan, features, packets,
                                                                               x_tiles);
  CUDA_CHECK(cudaGetLastError());
}

void pack_slices(const SlicePlan& plan, Precision precision, const float* features, std::int64_t batches,
                 unsigned char* x_rows, unsigned char* x_columns, cudaStream_t stream) {
  switch (precision) {
    case Precision::kFp32:
      return pack_pairs_as<SliceFp32, false>(plan, features, batches, x_rows, x_columns, stream);
    case Precision::kTf32:
      if (packs_tiles(precision, plan.layers, plan.team, plan.own))
        return pack_packed_pairs_as(plan, features, batches, x_rows, x_columns, stream);
      return pack_pairs_as<SliceTf32, true>(plan, features, batches, x_rows, x_columns, stream);
    case Precision::kFp16:
      return pack_pairs_as<SliceFp16, true>(plan, features, batches, x_rows, x_columns, stream);
    case Precision::kBf16:
      return pack_pairs_as<SliceBf16, true>(plan, features, batches, x_rows, x_columns, stream);
  }
  throw std::logic_error("pack_slices: not a Precision");
}

}  // namespace headroom::resident
