// How matrices of 16-bit values lie for the tensor cores, in device memory as in shared memory: in panels of 64 columns. A row of a
// panel is 128 bytes and its 16-byte pieces are swizzled, piece p of row r at place p ^ (r mod 8), which is how wgmma reads it,
// along a row as well as across. So whatever is copied is copied byte for byte.
//
// A narrow panel has 16 columns, rows of 32 bytes, piece p of row r at p ^ (r / 4 mod 2).
#pragma once

#ifdef __CUDACC__
#define MACHINE_BOTH __host__ __device__ inline
#else
#define MACHINE_BOTH inline
#endif

namespace headroom::machine {

inline constexpr int kWarpgroup = 128;  // threads
inline constexpr int kTileRows = 64;    // that a warpgroup multiplies at once
inline constexpr int kPanelColumns = 64, kPanelRowBytes = 128;
inline constexpr int kTilePanelBytes = kTileRows * kPanelRowBytes;

/// Byte of (row, column) in a panel; column < 64.
MACHINE_BOTH int panel_offset(int row, int column) {
  return row * kPanelRowBytes + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2;
}

inline constexpr int kNarrowColumns = 16, kNarrowRowBytes = 32;
inline constexpr int kNarrowTileBytes = kTileRows * kNarrowRowBytes;
/// The same in a narrow panel; column < 16.
MACHINE_BOTH int narrow_offset(int row, int column) {
  return row * kNarrowRowBytes + (((column >> 3) ^ (row >> 2 & 1)) << 4) + (column & 7) * 2;
}

}  // namespace headroom::machine
