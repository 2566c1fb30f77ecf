// A warp's share of a tile product on the tensor cores: mma.sync, the instruction of sm_80 and newer.
//
// One instruction multiplies a 16 x inner by an inner x 8 fragment (inner: 16 values of 16 bits, 8 of tf32)
// and adds in fp32. Which lane holds which element is fixed by the instruction; with group = lane / 4 and
// member = lane % 4 a lane's sums are (group, 2 member), (group, 2 member + 1) and the same 8 rows below.
// Fragments come by ldmatrix, which moves four blocks of 8 rows of 16 bytes at once. It can transpose blocks of
// 16-bit values, not of 32 bits: tf32 with the outer index contiguous is read one value at a time. The masters
// are rounded to tf32 on the way.
#pragma once

#include "layered/formats.h"
#include "layered/staging.cuh"
#include "machine/matrices.cuh"
#include "machine/mma.cuh"
#include "machine/numbers.cuh"

namespace headroom::layered {

/// sums [16, 8] += a [16, inner] * b [inner, 8]; which lane holds what is said above.
template <class Format>
__device__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (Format::kPrecision == Precision::kTf32)
    machine::mma_tf32(sums, a[0], a[1], a[2], a[3], b0, b1);
  else if constexpr (Format::kPrecision == Precision::kFp16)
    machine::mma_fp16(sums, a[0], a[1], a[2], a[3], b0, b1);
  else
    machine::mma_bf16(sums, a[0], a[1], a[2], a[3], b0, b1);
}

template <class Format, Storage kStorageA, Storage kStorageB, class TileA, class TileB, int kWarpRows,
          int kWarpColumns>
class WarpTensor {
 public:
  using Value = typename Format::Value;
  static constexpr int kInnerStep = 32 / static_cast<int>(sizeof(Value));
  static constexpr int kHalfStep = kInnerStep / 2;  // 16 bytes
  static constexpr int kFragmentRows = kWarpRows / 16;
  static constexpr int kFragmentColumns = kWarpColumns / 8;
  static_assert(kFragmentColumns % 2 == 0, "B fragments are loaded in pairs");

  /// Adds the product of kInnerStep inner indices from `inner`; the warp's part begins at (row, column).
  __device__ void multiply(const Value* a, const Value* b, int row, int column, int inner) {
    unsigned b_fragments[kFragmentColumns / 2][4];
#pragma unroll
    for (int pair = 0; pair < kFragmentColumns / 2; ++pair)
      load_b_pair(b_fragments[pair], b, column + 16 * pair, inner);
#pragma unroll
    for (int i = 0; i < kFragmentRows; ++i) {
      unsigned a_fragment[4];
      load_a(a_fragment, a, row + 16 * i, inner);
#pragma unroll
      for (int j = 0; j < kFragmentColumns; ++j)
        multiply_add<Format>(sums_[i][j], a_fragment, b_fragments[j / 2][j % 2 * 2],
                             b_fragments[j / 2][j % 2 * 2 + 1]);
    }
  }

  /// Writes the warp's sums to `tile`, row-major with `pitch`.
  __device__ void store(float* tile, int pitch, int row, int column) const {
    const int group = static_cast<int>(threadIdx.x) % 32 / 4;
    const int member = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int i = 0; i < kFragmentRows; ++i)
#pragma unroll
      for (int j = 0; j < kFragmentColumns; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* destination = tile + (row + 16 * i + 8 * half + group) * pitch + column + 8 * j + 2 * member;
          *reinterpret_cast<float2*>(destination) =
              make_float2(sums_[i][j][2 * half], sums_[i][j][2 * half + 1]);
        }
  }

 private:
  /// 16 rows x kInnerStep: blocks (rows 0-7, inner first half), (rows 8-15, first), (0-7, second), (8-15,
  /// second).
  __device__ static void load_a(unsigned (&fragment)[4], const Value* tile, int row, int inner) {
    load<kStorageA>(fragment, tile, [=](int block, int line, int along) {
      return TileA::at(row + block % 2 * 8 + line, inner + block / 2 * kHalfStep + along);
    });
  }

  /// kInnerStep x 16 columns, two fragments: blocks (inner first half, columns 0-7), (second, 0-7), (first,
  /// 8-15), (second, 8-15).
  __device__ static void load_b_pair(unsigned (&fragments)[4], const Value* tile, int column, int inner) {
    load<kStorageB>(fragments, tile, [=](int block, int line, int along) {
      return TileB::at(column + block / 2 * 8 + line, inner + block % 2 * kHalfStep + along);
    });
  }

  /// Four blocks of 8 outer and kHalfStep inner indices; at(block, outer, inner) is a place in the tile.
  template <Storage kStorage, class Place>
  __device__ static void load(unsigned (&blocks)[4], const Value* tile, Place&& at) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (kStorage == Storage::kInnerContiguous) {
      machine::load_matrices(tile + at(lane / 8, lane % 8, 0), blocks);
    } else if constexpr (sizeof(Value) == 2) {
      machine::load_matrices_transposed(tile + at(lane / 8, 0, lane % 8), blocks);
    } else {
#pragma unroll
      for (int block = 0; block < 4; ++block)
        blocks[block] = __float_as_uint(tile[at(block, lane / 4, lane % 4)]);
    }
    if constexpr (Format::kPrecision == Precision::kTf32) {
#pragma unroll
      for (int block = 0; block < 4; ++block)
        blocks[block] = machine::float_to_bits(machine::round_tf32(__uint_as_float(blocks[block])));
    }
  }

  float sums_[kFragmentRows][kFragmentColumns][4] = {};
};

}  // namespace headroom::layered
