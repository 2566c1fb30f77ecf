// A warp's share of a tile product with plain fp32 fused multiply-adds.
//
// The 32 lanes stand 4 x 8 over the warp's rows and columns; a lane keeps a grid of sums in registers and
// reads, for four inner indices at a time, one 16-byte vector for each row and column of its grid. Which rows
// are a lane's follows from the storage: every fourth (or eighth) where vectors run along the inner index, so
// that neighbouring lanes read neighbouring rows and no bank twice; runs of four where vectors run along the
// outer index.
#pragma once

#include "layered/formats.h"
#include "layered/staging.cuh"

namespace headroom::layered {

template <Storage kStorageA, Storage kStorageB, class TileA, class TileB, int kWarpRows, int kWarpColumns>
class WarpFma {
 public:
  static constexpr int kInnerStep = 4;  ///< one 16-byte vector
  static constexpr int kLaneRows = kWarpRows / 4;
  static constexpr int kLaneColumns = kWarpColumns / 8;

  __device__ WarpFma() : lane_row_(threadIdx.x % 32 / 8), lane_column_(threadIdx.x % 8) {}

  /// Adds the product of kInnerStep inner indices from `inner`; the warp's part begins at (row, column).
  __device__ void multiply(const float* a, const float* b, int row, int column, int inner) {
    float a_values[kLaneRows][kInnerStep];
    float b_values[kLaneColumns][kInnerStep];
    load<kStorageA, TileA, 4, kLaneRows>(a_values, a, row, lane_row_, inner);
    load<kStorageB, TileB, 8, kLaneColumns>(b_values, b, column, lane_column_, inner);
#pragma unroll
    for (int k = 0; k < kInnerStep; ++k)
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i)
#pragma unroll
        for (int j = 0; j < kLaneColumns; ++j)
          sums_[i][j] = fmaf(a_values[i][k], b_values[j][k], sums_[i][j]);
  }

  /// Writes the warp's sums to `tile`, row-major with `pitch`.
  __device__ void store(float* tile, int pitch, int row, int column) const {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i)
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j)
        tile[(row + owned<kStorageA, 4>(lane_row_, i)) * pitch + column +
             owned<kStorageB, 8>(lane_column_, j)] = sums_[i][j];
  }

 private:
  /// The index of a lane's n-th row (or column) within the warp's part, of `kLanes` lanes side by side.
  template <Storage kStorage, int kLanes>
  __device__ static constexpr int owned(int lane, int n) {
    return kStorage == Storage::kInnerContiguous ? lane + kLanes * n
                                                 : 4 * lane + 4 * kLanes * (n / 4) + n % 4;
  }

  template <Storage kStorage, class Tile, int kLanes, int kCount>
  __device__ static void load(float (&values)[kCount][kInnerStep], const float* tile, int begin, int lane,
                              int inner) {
    if constexpr (kStorage == Storage::kInnerContiguous) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        const float4 vector = *reinterpret_cast<const float4*>(
            tile + Tile::at(begin + owned<kStorage, kLanes>(lane, n), inner));
        values[n][0] = vector.x, values[n][1] = vector.y, values[n][2] = vector.z, values[n][3] = vector.w;
      }
    } else {
      static_assert(kCount % 4 == 0, "a vector along the outer index holds four of a lane's rows");
#pragma unroll
      for (int k = 0; k < kInnerStep; ++k)
#pragma unroll
        for (int n = 0; n < kCount; n += 4) {
          const float4 vector = *reinterpret_cast<const float4*>(
              tile + Tile::at(begin + owned<kStorage, kLanes>(lane, n), inner + k));
          values[n][k] = vector.x, values[n + 1][k] = vector.y, values[n + 2][k] = vector.z,
          values[n + 3][k] = vector.w;
        }
    }
  }

  const int lane_row_, lane_column_;
  float sums_[kLaneRows][kLaneColumns] = {};
};

}  // namespace headroom::layered
