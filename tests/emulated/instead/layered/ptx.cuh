// Stands in for cuda_impl/layered/ptx.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <cstring>

#include "layered/formats.h"
#include "machine/memory.cuh"
#include "machine/warp.cuh"

namespace headroom::layered {

inline unsigned shared_address(const void* pointer) { return emulated::shared_address(pointer); }

inline void copy_async(void* destination, const void* source, int bytes) {
  unsigned char* to = emulated::shared_pointer(shared_address(destination), 16);
  std::memset(to + bytes, 0, static_cast<std::size_t>(16 - bytes));
  if (bytes > 0)
    emulated::copy_in_group(to, &emulated::value_at<uint4>(source), static_cast<std::size_t>(bytes));
}
inline void close_copy_group() { emulated::commit_group(); }
template <int kPending>
inline void wait_for_copy_groups() {
  emulated::wait_for_groups(kPending);
}

inline void load_blocks(unsigned (&blocks)[4], const void* row) {
  emulated::Matrices mine{row, {}};
  emulated::move_matrices<false, false>("ldmatrix", mine);
  std::copy(mine.words, mine.words + 4, blocks);
}
inline void load_blocks_transposed(unsigned (&blocks)[4], const void* row) {
  emulated::Matrices mine{row, {}};
  emulated::move_matrices<true, false>("ldmatrix.trans", mine);
  std::copy(mine.words, mine.words + 4, blocks);
}
inline unsigned round_to_tf32(float value) { return __float_as_uint(machine::round_tf32(value)); }

template <class Format>
void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (Format::kPrecision == Precision::kTf32)
    machine::product_tf32(sums, a[0], a[1], a[2], a[3], b0, b1);
  else if constexpr (Format::kPrecision == Precision::kFp16)
    machine::product_fp16(sums, a[0], a[1], a[2], a[3], b0, b1);
  else
    machine::product_bf16(sums, a[0], a[1], a[2], a[3], b0, b1);
}

}  // namespace headroom::layered
