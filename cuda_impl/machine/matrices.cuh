// Matrices of 8x8 values of 16 bits between shared memory and a warp's registers (ldmatrix, stmatrix, movmatrix). Of matrix i lane
// 4g + t has columns 2t and 2t + 1 of row g in words[i]; transposed, rows 2t and 2t + 1 of column g.
//
// Four at a time: `row` is the address in shared memory of row lane % 8 of matrix lane / 8, 16 bytes on a multiple of 16.
#pragma once

#include <cstdint>

#include "machine/memory.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE void load_matrices(std::uint32_t row, std::uint32_t* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}
MACHINE_DEVICE void load_matrices_transposed(std::uint32_t row, std::uint32_t* words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}
MACHINE_DEVICE void store_matrices(std::uint32_t row, const std::uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
MACHINE_DEVICE void store_matrices_transposed(std::uint32_t row, const std::uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}
// The same where `row` is a pointer.
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

/// One matrix, a word a lane, transposed.
MACHINE_DEVICE std::uint32_t transpose8x8(std::uint32_t word) {
  std::uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(word));
  return transposed;
}

}  // namespace headroom::machine
