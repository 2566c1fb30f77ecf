// Matrices and products of a warp, where the CPU plays the GPU, by the definitions of PTX ISA 9.0 ("Matrix fragments for
// mma.m16n8k16", "ldmatrix").
#pragma once

#include <cstdint>
#include <string>

#include "lanes.h"
#include "machine.h"

namespace headroom::emulated {

/// Words of four 8x8 matrices of 16-bit values as lanes hold them: of matrix i lane 4g + t has columns 2t and 2t + 1 of
/// row g in words[i], turned rows 2t and 2t + 1 of column g.
struct Matrices {
  const void* row;  // that this lane names: lane % 8 of matrix lane / 8
  std::uint32_t words[4];
};
inline std::uint16_t* matrix_row(Matrices* const* lanes, int matrix, int row) {
  return static_cast<std::uint16_t*>(const_cast<void*>(lanes[8 * matrix + row]->row));
}
template <bool kTurned, bool kStores>
void move_matrices(const char* instruction, Matrices& mine) {
  if (reinterpret_cast<std::uintptr_t>(mine.row) % 16 != 0)
    fault(std::string(instruction) + " of a row that does not begin at 16 bytes");
  with_warp(instruction, mine, [](Matrices* const* lanes) {
    for (int matrix = 0; matrix < 4; ++matrix)
      for (int lane = 0; lane < kWarp; ++lane)
        for (int of_two = 0; of_two < 2; ++of_two) {
          const int g = lane / 4, pair = 2 * (lane % 4) + of_two;
          std::uint16_t& element =
              kTurned ? matrix_row(lanes, matrix, pair)[g] : matrix_row(lanes, matrix, g)[pair];
          std::uint16_t* held = reinterpret_cast<std::uint16_t*>(&lanes[lane]->words[matrix]) + of_two;
          if (kStores)
            element = *held;
          else
            *held = element;
        }
  });
}

struct Product {
  std::uint32_t a[4], b[2];
  float c[4];
};
/// c [16, 8] += a [16, k] * b [k, 8]; k is 16 in 16 bits, else 8. A sum of exact products, rounded once; a tensor core rounds
/// more often.
template <int kDepth, class Value>
void multiply(const char* instruction, Product& mine, const Value& value) {
  with_warp(instruction, mine, [&](Product* const* lanes) {
    constexpr int kPerWord = kDepth / 8;
    float a[16][kDepth], b[kDepth][8];
    for (int lane = 0; lane < kWarp; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int word = 0; word < 4; ++word)
        for (int i = 0; i < kPerWord; ++i)
          a[g + 8 * (word % 2)][word / 2 * 4 * kPerWord + kPerWord * t + i] = value(lanes[lane]->a[word], i);
      for (int word = 0; word < 2; ++word)
        for (int i = 0; i < kPerWord; ++i)
          b[word * 4 * kPerWord + kPerWord * t + i][g] = value(lanes[lane]->b[word], i);
    }
    for (int lane = 0; lane < kWarp; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        double sum = lanes[lane]->c[i];
        for (int k = 0; k < kDepth; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
        lanes[lane]->c[i] = static_cast<float>(sum);
      }
  });
}
}  // namespace headroom::emulated
