// Stands in for cuda_impl/machine/matrices.cuh where the CPU plays the GPU: the same functions, in the same order. What stmatrix has
// written has to be fenced before a copy or a product of a warpgroup reads it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "machine/memory.cuh"
#include "machine/thread.cuh"
#include "matrices.h"

namespace headroom::machine {
namespace internal {

template <bool kTransposed>
void load(const char* instruction, std::uint32_t row, std::uint32_t* words) {
  emulated::Matrices mine{emulated::shared_pointer(row, 16), {}};
  emulated::move_matrices<kTransposed, false>(instruction, mine);
  std::copy(mine.words, mine.words + 4, words);
}
template <bool kTransposed>
void store(const char* instruction, std::uint32_t row, const std::uint32_t* words) {
  emulated::Matrices mine{emulated::shared_pointer(row, 16), {words[0], words[1], words[2], words[3]}};
  emulated::move_matrices<kTransposed, true>(instruction, mine);
  emulated::written(row, 16);
}

}  // namespace internal

MACHINE_DEVICE void load_matrices(std::uint32_t row, std::uint32_t* words) {
  internal::load<false>("ldmatrix", row, words);
}
MACHINE_DEVICE void load_matrices_transposed(std::uint32_t row, std::uint32_t* words) {
  internal::load<true>("ldmatrix.trans", row, words);
}
MACHINE_DEVICE void store_matrices(std::uint32_t row, const std::uint32_t* words) {
  internal::store<false>("stmatrix", row, words);
}
MACHINE_DEVICE void store_matrices_transposed(std::uint32_t row, const std::uint32_t* words) {
  internal::store<true>("stmatrix.trans", row, words);
}
MACHINE_DEVICE void load_matrices(const void* row, std::uint32_t* words) {
  load_matrices(shared_address(row), words);
}
MACHINE_DEVICE void load_matrices_transposed(const void* row, std::uint32_t* words) {
  load_matrices_transposed(shared_address(row), words);
}
MACHINE_DEVICE void store_matrices(void* row, const std::uint32_t* words) {
  store_matrices(shared_address(row), words);
}
MACHINE_DEVICE void store_matrices_transposed(void* row, const std::uint32_t* words) {
  store_matrices_transposed(shared_address(row), words);
}

MACHINE_DEVICE std::uint32_t transpose8x8(std::uint32_t word) {
  struct Words {
    std::uint16_t given[2], turned[2];
  } mine{{static_cast<std::uint16_t>(word), static_cast<std::uint16_t>(word >> 16)}, {}};
  emulated::with_warp("movmatrix", mine, [](Words* const* lanes) {
    for (int row = 0; row < 8; ++row)
      for (int column = 0; column < 8; ++column)
        lanes[4 * column + row / 2]->turned[row % 2] = lanes[4 * row + column / 2]->given[column % 2];
  });
  return mine.turned[0] | static_cast<std::uint32_t>(mine.turned[1]) << 16;
}

}  // namespace headroom::machine
