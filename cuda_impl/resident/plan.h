// Who owns what, and where every byte lies: worked out on the host once, read by the kernel as it stands.
//
// Columns of a layer's output come in chunks of 8 and, where they are summed over, in units of 4 chunks; rows of
// the batch in groups of 32. A member (thread block) owns the same number of neighbouring chunks of every layer,
// and every weight is kept twice, as a row of its layer and, for the input gradient, as a column.
#pragma once

#include <cstdint>

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
#include <string>
#include <vector>

#include "core/workload.h"
#else
// The one of jit/standard.

#include "core/workload.h"
#endif

namespace headroom::resident {

inline constexpr int kThreads = 256;  // 8 warps: each may hold 255 registers
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kMaxLayers = 8;
inline constexpr int kMaxBatch = 128;
inline constexpr int kMaxCluster = 16;
inline constexpr int kChunkColumns = 8, kUnitColumns = 32, kUnitChunks = 4, kGroupRows = 32;
/// The kernel keeps its arguments, the plan among them, at the start of shared memory: they are indexed by layer, and
/// there every field is one short load away.
inline constexpr int kArgumentsBytes = 1664;
inline constexpr int kMaxExchanges = 2 * kMaxLayers - 2;
inline constexpr int kLogitTileBytes = kGroupRows * kChunkColumns * 4;  // [32 rows, 8 columns] fp32

/// Exchange through distributed shared memory inside one cluster, or through the L2 over the whole grid.
enum class Form { kCluster, kGrid };
#ifndef HEADROOM_COMPILED_ALONE
std::string_view to_string(Form form);  ///< "cluster", "grid"
#endif

/// Buffers an exchange takes turns with. Cluster: a member may be one step behind the others. Grid: a buffer is read in
/// its step and the next, cleared by its writers two steps later, and written again when all have seen that.
constexpr int stages(Form form) { return form == Form::kCluster ? 2 : 5; }

/// A tile is [32 rows, 8 columns] of one group and chunk, row by row. In shared memory tiles are 32 (16) bytes
/// further apart than they are long, so that the four chunks that a warp reads at once lie in different banks.
constexpr int tile_bytes(int element_bytes) { return kGroupRows * kChunkColumns * element_bytes; }
constexpr int shared_tile_bytes(int element_bytes) {
  return tile_bytes(element_bytes) + (element_bytes == 2 ? 32 : 16);
}

/// Offsets are bytes from the start of a member's shared memory.
struct LayerPlan {
  std::int32_t in, out;              // widths
  std::int32_t in_units, out_units;  // units of 32 columns, padding included
  std::int32_t chunks;               // chunks of output columns, padding chunks not included
  std::int32_t per_member;           // chunks a member owns; the last members may own fewer
  std::int32_t rows_offset;          // fp32 [per_member * 8, rows_pitch]: own rows of the weight
  std::int32_t rows_pitch;           // values
  std::int32_t
      columns_offset;  // fp32 [per_member of the layer below * 8, columns_pitch]: own columns, transposed
  std::int32_t columns_pitch;  // values; 0 for the first layer, which has no input gradient
  std::int32_t bias_offset;    // fp32 [per_member * 8]
  std::int32_t
      hidden_offset[2];  // own tiles of the activation, by the step's parity; none for the last layer
  std::int32_t gradient_offset[2];        // own tiles of the gradient
  std::int32_t hidden_exchange;           // -1 for the last layer
  std::int32_t gradient_exchange;         // -1 for the first and the last layer
  std::int64_t weight_begin, bias_begin;  // in the flat parameters
};

struct ExchangePlan {
  std::int32_t chunks, chunks_with_padding;
  std::int32_t bytes_per_step;    // that a member of a cluster receives
  std::int32_t shared_offset[2];  // cluster: tiles [groups, chunks_with_padding], by stage
  std::int64_t global_offset;     // grid: bytes from the start of the exchange memory, stage 0
  std::int64_t global_stage_bytes;
  std::int64_t global_columns;  // from a stage's start to its tiles in column order; 0 if there are none
};

struct Plan {
  Form form;
  std::int32_t members, layers, batch, groups, classes, max_tiles;
  std::int32_t exchanges, logit_exchange;
  std::int32_t element_bytes, tile, shared_tile;
  std::int32_t
      dlogits_offset[2];  // tiles [groups, units of the last layer * 4] of the logits' gradient, by parity
  std::int32_t partial_offset[2];                // fp32 [max_tiles, 8 warps, 32, 8]
  std::int32_t row_loss_offset;                  // fp32 [groups * 32]
  std::int32_t barrier_offset;                   // cluster: mbarriers [exchanges, 2], then one for `free`
  std::int32_t x_rows_offset, x_columns_offset;  // staged inputs of one batch; -1 if read from the L2
  std::int32_t shared_bytes;
  std::int64_t exchange_bytes;  // grid: of global memory
  std::int64_t x_batch_bytes;   // of one batch in one order
  LayerPlan layer[kMaxLayers];
  ExchangePlan exchange[kMaxExchanges];
};

struct Limits {
  std::int32_t sm_count = 0;
  std::int32_t shared_bytes = 0;  ///< that one thread block may have
};

#ifndef HEADROOM_COMPILED_ALONE
/// Throws UnsupportedError: layers not 2 to 8, batch over 128, or bytes needed and bytes there.
Plan make_plan(const Workload& workload, Precision precision, Form form, const Limits& limits);

/// The form tried first: a cluster where 16 members with one chunk each are enough and their exchange buffers fit.
std::vector<Form> forms_to_try(const Workload& workload);
#endif

}  // namespace headroom::resident
