// What the plans of cuda-resident's kernels share.
#pragma once

#include <cstdint>

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
#include <string>

#include "core/workload.h"
#else
// The one of jit/standard.

#include "core/workload.h"
#endif

namespace headroom::resident {

inline constexpr int kThreads = 256;  // 8 warps: each may hold 255 registers
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kMaxLayers = 8;
inline constexpr int kMaxCluster = 16;
inline constexpr int kSliceColumns = 8, kGroupRows = 32;

/// Exchange through distributed shared memory inside one cluster, or through the L2 over the whole grid.
enum class Form { kCluster, kGrid };
#ifndef HEADROOM_COMPILED_ALONE
constexpr std::string_view to_string(Form form) { return form == Form::kCluster ? "cluster" : "grid"; }
#endif

/// A tile is [32 rows, 8 columns].
constexpr int tile_bytes(int element_bytes) { return kGroupRows * kSliceColumns * element_bytes; }

struct Limits {
  std::int32_t sm_count = 0;
  std::int32_t shared_bytes = 0;  ///< that one thread block may have
};

}  // namespace headroom::resident
