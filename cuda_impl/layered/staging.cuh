// Moving a tile of a matrix from device memory to shared memory, 16 bytes a thread,
// without passing registers.
//
// A product sums over an inner index. An operand is either stored with the inner index contiguous (x and W in
// x * W^T) or with the outer one (W in d * W, both operands in d^T * x). It is copied as it lies; the
// fragment loads then read it either way. Rows in shared memory are a little longer than the tile, so that
// the 8 rows that a warp reads at once lie in different banks.
#pragma once

#include <cstdint>

#include "layered/matrix.h"
#include "machine/copy.cuh"

namespace headroom::layered {

enum class Storage { kInnerContiguous, kOuterContiguous };

/// A matrix as a factor of a product. The outer index runs over rows (or columns) of the result.
template <class Value>
struct Operand {
  const Value* data;
  std::int64_t pitch;
  std::int64_t outer;  ///< extent of the outer index
};

/// A tile of kOuter x kInner values in shared memory.
template <class Value, Storage kStorage, int kOuter, int kInner>
struct StagedTile {
  static constexpr int kVector = 16 / static_cast<int>(sizeof(Value));
  static constexpr int kRows = kStorage == Storage::kInnerContiguous ? kOuter : kInner;
  static constexpr int kColumns = kStorage == Storage::kInnerContiguous ? kInner : kOuter;
  // One vector of padding spreads ldmatrix rows and the 4-byte reads along a row over all banks; 4-byte reads
  // down a column (tf32 from kOuterContiguous) need two.
  static constexpr int kPadding =
      kStorage == Storage::kOuterContiguous && sizeof(Value) == 4 ? 2 * kVector : kVector;
  static constexpr int kPitch = kColumns + kPadding;
  static constexpr int kValues = kRows * kPitch;

  /// Position of (outer, inner) in the tile.
  __device__ static constexpr int at(int outer, int inner) {
    return kStorage == Storage::kInnerContiguous ? outer * kPitch + inner : inner * kPitch + outer;
  }

  /// Copies one tile after another along the inner index. A thread copies the same places of every tile: one
  /// column, and every kRowsPerPass-th row from its first.
  template <int kThreads>
  class Loader {
   public:
    __device__ Loader(const Operand<Value>& operand, std::int64_t outer_begin, std::int64_t inner_begin,
                      std::int64_t inner_end)
        : row_(static_cast<int>(threadIdx.x) / kVectorsPerRow),
          column_(static_cast<int>(threadIdx.x) % kVectorsPerRow * kVector),
          outer_left_(at_most(operand.outer - outer_begin, kOuter)),
          inner_size_(inner_end - inner_begin),
          pass_step_(kRowsPerPass * operand.pitch),
          tile_step_(kInnerFirst ? kInner : kInner * operand.pitch) {
      const std::int64_t first_row = kInnerFirst ? outer_begin : inner_begin;
      const std::int64_t first_column = kInnerFirst ? inner_begin : outer_begin;
      source_ = operand.data + (first_row + row_) * operand.pitch + first_column + column_;
    }

    /// Starts copying tile `index`; what lies outside the matrix or past the inner end becomes zero.
    __device__ void load(Value* tile, int index) const {
      const int inner_left = at_most(inner_size_ - static_cast<std::int64_t>(index) * kInner, kInner);
      const int rows = kInnerFirst ? outer_left_ : inner_left;
      const int columns = (kInnerFirst ? inner_left : outer_left_) - column_;
      const int bytes = min(max(columns, 0), kVector) * static_cast<int>(sizeof(Value));
      const Value* source = source_ + index * tile_step_;
#pragma unroll
      for (int pass = 0; pass < kRows / kRowsPerPass; ++pass) {
        const int row = row_ + pass * kRowsPerPass;
        machine::copy_async16_zero_rest(tile + row * kPitch + column_, source + pass * pass_step_,
                                        row < rows ? bytes : 0);
      }
    }

   private:
    static constexpr bool kInnerFirst = kStorage == Storage::kInnerContiguous;
    static constexpr int kVectorsPerRow = kColumns / kVector;
    static constexpr int kRowsPerPass = kThreads / kVectorsPerRow;
    static_assert(kThreads % kVectorsPerRow == 0 && kRows % kRowsPerPass == 0);

    __device__ static int at_most(std::int64_t value, int limit) {
      return value < limit ? static_cast<int>(value) : limit;
    }

    const int row_, column_;  // of the thread's first vector
    const int outer_left_;    // of the matrix from the tile on
    const std::int64_t inner_size_, pass_step_, tile_step_;
    const Value* source_;
  };
};

}  // namespace headroom::layered
