// Moving a tile of a matrix from device memory to shared memory, 16 bytes a thread, without passing
// registers.
//
// A product sums over an inner index. An operand is either stored with the inner index contiguous (x and W in
// x * W^T) or with the outer one (W in d * W, both operands in d^T * x). It is copied as it lies; the
// fragment loads then read it either way. Rows in shared memory are a little longer than the tile, so that
// the 8 rows that a warp reads at once lie in different banks.
#pragma once

#include <cstdint>

#include "layered/matrix.h"

namespace headroom::layered {

enum class Storage { kInnerContiguous, kOuterContiguous };

/// A matrix as a factor of a product. The outer index runs over rows (or columns) of the result.
template <class Value>
struct Operand {
  const Value* data;
  std::int64_t pitch;
  std::int64_t outer;  ///< extent of the outer index
};

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// Starts a copy of 16 bytes of which the first `bytes` are read and the rest become zero.
__device__ inline void copy_async(void* destination, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;\n" ::"r"(shared_address(destination)),
               "l"(source), "r"(bytes)
               : "memory");
}
__device__ inline void close_copy_group() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most `kPending` of this thread's latest groups are still under way.
template <int kPending>
__device__ inline void wait_for_copy_groups() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

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

  /// Starts copying the tile at (outer_begin, inner_begin); what lies outside the matrix or from `inner_end`
  /// on is zero. Called by all threads of the block.
  template <int kThreads>
  __device__ static void load(Value* tile, const Operand<Value>& operand, std::int64_t outer_begin,
                              std::int64_t inner_begin, std::int64_t inner_end) {
    constexpr int kVectorsPerRow = kColumns / kVector;
    constexpr int kVectors = kRows * kVectorsPerRow;
    const std::int64_t row_begin = kStorage == Storage::kInnerContiguous ? outer_begin : inner_begin;
    const std::int64_t column_begin = kStorage == Storage::kInnerContiguous ? inner_begin : outer_begin;
    const std::int64_t row_end = kStorage == Storage::kInnerContiguous ? operand.outer : inner_end;
    const std::int64_t column_end = kStorage == Storage::kInnerContiguous ? inner_end : operand.outer;
#pragma unroll
    for (int first = 0; first < kVectors; first += kThreads) {
      const int vector = first + static_cast<int>(threadIdx.x);
      if (kVectors % kThreads != 0 && vector >= kVectors) break;
      const int row = vector / kVectorsPerRow;
      const int column = vector % kVectorsPerRow * kVector;
      const std::int64_t left = column_end - (column_begin + column);
      int valid = left >= kVector ? kVector : left > 0 ? static_cast<int>(left) : 0;
      if (row_begin + row >= row_end) valid = 0;
      const Value* source =
          valid > 0 ? operand.data + (row_begin + row) * operand.pitch + column_begin + column : operand.data;
      copy_async(tile + row * kPitch + column, source, valid * static_cast<int>(sizeof(Value)));
    }
  }
};

}  // namespace headroom::layered
