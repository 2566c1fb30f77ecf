// Panels (panels.h) in shared memory: their descriptions for wgmma, and storing a warpgroup's rows into them.
#pragma once

#include <cstdint>

#include "machine/matrices.cuh"
#include "machine/panels.h"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"

namespace headroom::machine {

/// The upper bits of an address in shared memory name the rank in the cluster; a description has no room for them.
MACHINE_DEVICE std::uint32_t described_address(std::uint32_t address) { return (address & 0x3ffff) >> 4; }
/// A matrix in panels as wgmma wants it described. `panel_stride`: bytes from one panel to the next, used where a
/// turned factor is wider than a panel. Panels begin at multiples of 1024 bytes.
MACHINE_DEVICE Panels describe(std::uint32_t address, std::uint32_t panel_stride = 16) {
  return {described_address(address) + (panel_stride >> 4 << 16)};
}
/// Two panels, wherever the second lies behind the first.
MACHINE_DEVICE Panels describe_both(std::uint32_t first, std::uint32_t second) {
  const std::uint32_t begin = described_address(first);
  return {begin + (described_address(second) - begin << 16)};
}
MACHINE_DEVICE NarrowPanel describe_narrow(std::uint32_t address) { return {described_address(address)}; }
// How far a description moves on for one more product: along the rows 32 bytes (16 columns of 16 bits, 8 of tf32), across them 16 rows.
constexpr int kAlong = 32 >> 4, kAcross = 16 * kPanelRowBytes >> 4, kAcrossNarrow = 16 * kNarrowRowBytes >> 4;
// To the same columns of the next panel, and what describe_both() moves on by if the second panel stays.
constexpr int kNextPanel = kTilePanelBytes >> 4, kAcrossFirst = kAcross - (kAcross << 16);

/// Which rows and pieces of a panel this thread addresses in stmatrix; `thread` of the warpgroup.
struct Lane {
  int lane, warp;            // warp of the warpgroup
  std::uint32_t row, piece;  // byte of its row; 0 or 1
  MACHINE_DEVICE explicit Lane(int thread) : lane(thread & 31), warp(thread >> 5) {
    row = static_cast<std::uint32_t>((warp * 16 + (lane & 15)) * kPanelRowBytes);
    piece = static_cast<std::uint32_t>(lane >> 4);
  }
  /// Of 16 columns beginning with column 16 * step.
  MACHINE_DEVICE std::uint32_t place(int step) const {
    return static_cast<std::uint32_t>(step >> 2) * kTilePanelBytes + row +
           (((2 * (static_cast<std::uint32_t>(step) & 3) + piece) ^ (static_cast<std::uint32_t>(lane) & 7))
            << 4);
  }
  /// Of a narrow panel's 16 columns.
  MACHINE_DEVICE std::uint32_t narrow_place() const {
    const int own_row = warp * 16 + (lane & 15);
    return static_cast<std::uint32_t>(own_row * kNarrowRowBytes) +
           ((piece ^ (static_cast<std::uint32_t>(own_row) >> 2 & 1)) << 4);
  }
  MACHINE_DEVICE int first_row() const { return warp * 16 + (lane >> 2); }
  MACHINE_DEVICE int first_column() const { return 2 * (lane & 3); }
};

/// 16 * kSteps columns of the warp's 16 rows into panels, from column 16 * first_step on. `held`: sums of a product packed in
/// pairs, in the order of the sums.
template <int kSteps>
MACHINE_DEVICE void store_rows(std::uint32_t panels, const std::uint32_t* held, const Lane& at,
                               int first_step = 0) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    store_matrices(panels + at.place(first_step + step), held + 4 * step);
}

}  // namespace headroom::machine
