// Who owns what, and where every tile lies: worked out on the host once, read by the kernel as it stands.
//
// Weights come in tiles of 16 outputs x 16 inputs, activations and gradients in tiles of 32 rows of the batch x 16
// features. A thread block owns the same features of a layer throughout: it computes their activations from rows of
// the layer below them and their gradients from columns of the layer above them.
#pragma once

#include <cstdint>

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
#include <optional>
#include <string>
#endif

#include "core/workload.h"

#ifdef __CUDACC__
#define STREAMED_BOTH __host__ __device__ inline
#else
#define STREAMED_BOTH inline
#endif

namespace headroom::streamed {

inline constexpr int kTileSide = 16;   // of a tile of weights; features of a tile of activations
inline constexpr int kGroupRows = 32;  // rows of the batch in a tile of activations
inline constexpr int kMaxBatch = 128;
inline constexpr int kMostGroups = 4;  // the kernel is compiled for 1 group and for 4
/// A last layer of at most so many tiles is multiplied column by column.
inline constexpr int kNarrowTiles = 4;
/// Shared memory: a ring of copies in flight for each warp, all of them together, and one place to add up what the warps found.
inline constexpr int kRingBytes = 196608, kReductionBytes = 32768;
inline constexpr int kSharedBytes = kReductionBytes + kRingBytes;
/// With halves of masters that stay: room for them, and smaller rings in the rest, where sums are added up as well.
inline constexpr int kKeptBytes = 131072, kSmallRingBytes = 98304;
static_assert(kKeptBytes + kSmallRingBytes <= kSharedBytes);
/// With some halves that stay in panels of 2 tiles, or masters of the first layer: rings in between.
inline constexpr int kMiddleRingBytes = 147456, kPartlyKeptBytes = 81920;
static_assert(kPartlyKeptBytes + kMiddleRingBytes <= kSharedBytes);
/// With packed activations in panels of 2 tiles and masters of the first layer: three stages of 3328 bytes a warp.
inline constexpr int kPackedRingBytes = 159744, kPackedKeptBytes = 69632;
static_assert(kPackedKeptBytes + kPackedRingBytes <= kSharedBytes && kPackedRingBytes == 16 * 3 * 3328);

struct LayerPlan {
  std::int32_t in, out;              // widths
  std::int32_t in_tiles, out_tiles;  // with padding
  std::int32_t panel;                // tiles of outputs that a thread block sums up at once: 1, 2 or 4
  std::int32_t owned;                // neighbouring tiles of outputs a thread block owns, a multiple of panel
  std::int32_t bias;                 // first value in the biases
  std::int32_t kept;  // first byte of its lower halves in what a thread block keeps; -1: they are in memory
  std::int64_t first_tile;                // of the weights
  std::int64_t first_output;              // tile of the activations and of the gradients, in groups of rows
  std::int64_t weight_begin, bias_begin;  // in the flat parameters
};

/// What of the masters stays in shared memory from the beginning of a launch to its end.
enum class Kept : std::int32_t {
  kNothing,
  kLowerHalves,  // of layers (LayerPlan::kept), in panels of 2 tiles of some items of layer 1
  kFirstLayer,   // both parts, of the first tiles of inputs
};

struct Plan {
  std::int32_t members;  // thread blocks
  std::int32_t layers, batch, groups, classes;
  std::int32_t narrow;  // last layer by columns: every member sums its own and leaves a part for each logit
  std::int32_t joined;  // 1: all members add those parts up as integers, and every member has the whole loss
  std::int32_t logit_columns;  // classes with padding
  std::int32_t logit_parts;    // members, or 1
  /// How much is kept where it is not all: of 256 items of layer 1's backward pass so many (Kept::kLowerHalves, panels of 2
  /// tiles; 0: all), or so many tiles of inputs (Kept::kFirstLayer).
  std::int32_t kept_part;
  std::int64_t tiles;         // of weights
  std::int64_t biases;        // values
  std::int64_t output_tiles;  // of activations in one group of rows
  std::int32_t input_tiles;   // of one batch in one group of rows
  Kept keeps;
  LayerPlan layer[kMaxLayers];
};

struct Limits {
  std::int32_t sm_count = 0;
  std::int32_t shared_bytes = 0;  ///< that one thread block may have
};

#ifndef HEADROOM_COMPILED_ALONE
/// Why this workload cannot be streamed on such a device, whatever its precision; nullopt if it can.
std::optional<std::string> cannot_stream(const Workload& workload, const Limits& limits);

/// Throws UnsupportedError with cannot_stream()'s reason.
Plan make_plan(const Workload& workload, const Limits& limits);
#endif

/// For bf16: decides which layers' lower halves of masters, which nobody but the owner of their columns reads, stay in shared
/// memory from the beginning of a launch to its end. None with panels of several tiles or with large batches.
void keep_lower_halves(Plan& plan);

/// The same with panels of 2 tiles and hints for the L2: of layer 1's lower halves as many as there is room for. In panels of 4 tiles it brings
/// nothing (docs/kernels/log/streamed.md).
void keep_some_lower_halves(Plan& plan, int held);

/// For fp16 and tf32: the first layer's masters, which only the block that owns their outputs touches, stay in shared memory, with panels of one
/// tile if there is room for all of them, with panels of two and hints for the L2 as many as there is room for, in tf32 if activations are packed.
void keep_first_masters(Plan& plan, Precision precision, int held);

/// Warps that divide the outputs of such a backward pass, items. Whether a warp's item is kept, and how many before it are: spread evenly.
inline constexpr int kItemWarps = 16;
STREAMED_BOTH constexpr int kept_before(int share, int item) { return item * share >> 8; }
STREAMED_BOTH constexpr bool is_kept(int share, int item) {
  return kept_before(share, item + 1) != kept_before(share, item);
}

#ifndef HEADROOM_COMPILED_ALONE
/// Tiles of every panel but a narrow last layer's, if the batch is up to 32; 0 if they differ or it is larger. For kernels without code for
/// other panels: with it ptxas keeps places in local memory in tf32, and behind every barrier of the grid they come out of the L2.
int one_panel_for_all(const Plan& plan);

/// Whether activations and gradients lie packed (packed_tiles.h): in tf32 with joined logits and panels of 1 or of 2 tiles; in panels of 4 it is
/// slower (docs/kernels/log/streamed.md).
bool packs_activations(const Plan& plan, Precision precision);

/// Bytes that a step moves the less for it.
double kept_bytes_per_step(const Plan& plan);

/// The part of the L2 that is asked to hold masters, in bf16 their high halves. It is 12 MB of an H200's; there, at H = 4096 in fp16 and
/// tf32, both more and less were slower.
inline constexpr std::int64_t kHeldPartOfL2 = 5;

/// An H200's, for what is compiled for a device that need not be there.
inline constexpr std::int64_t kUsualL2Bytes = std::int64_t{60} << 20;

/// How many tiles of masters out of 256 that is: at least one, at most half.
int held_share(const Plan& plan, Precision precision, std::int64_t l2_bytes);

/// How many tiles of masters out of 256 the L2 is to hold while the rest only passes, so that not all of them push each other out.
/// The share above if the masters are more than the L2 and at most three times as much (larger ones lose by hints), the batch is up
/// to 32 and no halves are kept; otherwise 0, and the L2 is asked for nothing. With packed activations in panels of 2 tiles also if the
/// masters are less than the L2: the kernel with hints has no local memory. In fp32 the number
/// says whether it is asked at all, then to hold a fixed share of the lines.
int tiles_to_hold(const Plan& plan, Precision precision, std::int64_t l2_bytes);
#endif

#ifndef HEADROOM_COMPILED_ALONE
/// The rules of slots.cuh. kAdam: without a decay, and with an epsilon of at least kLeastEpsilon; the rest of Adam is kAdamW's.
enum class SlotRule { kMomentum, kAdam, kAdamW };
inline constexpr double kLeastEpsilon = 1e-12;
SlotRule slot_rule(const Optimizer& optimizer);

/// Which instance of the kernel (streamed_steps in step.cuh) a plan takes.
struct KernelShape {
  Precision precision;
  bool packs = false;           ///< packs_activations()
  Kept keeps = Kept::kNothing;  ///< what stays on the chip
  int told = 0;        ///< what the L2 is told: Placed in tiles.cuh, with slots WithSlots in slots.cuh
  int groups, panels;  ///< kMostGroups or 1; tiles of every panel, or 0: any
  // With slots:
  std::optional<SlotRule> rule = std::nullopt;  ///< none: plain SGD
  Loss loss = Loss::kCrossEntropy;
};
/// What a network gets.
struct PlanAndKernel {
  Plan plan;
  KernelShape kernel;
  int held;  ///< of how many tiles out of 256 the L2 is to hold the masters
};
/// Throws UnsupportedError with cannot_stream()'s reason. `hold`: for a test; not in fp32 and not with slots, hints for the L2 whatever the masters and it
/// measure.
PlanAndKernel plan_with_kernel(const Workload& workload, Precision precision, const Limits& limits,
                               std::int64_t l2_bytes, bool hold = false);
/// "streamed_steps<...>" as device code spells it; "WithSlots<Bf16, Adam, 1>, 1, 2", without the namespaces.
std::string kernel_name(const KernelShape& shape);
std::string short_name(const KernelShape& shape);
#endif

/// Whether the L2 is asked to hold a tile: about the same share of every row and of every column, so that nobody's tiles are
/// all near or all far. Four tiles in a square are alike, as one destination serves the tiles of an item.
STREAMED_BOTH constexpr bool is_held(int held, int out_tile, int in_tile) {
  const std::uint32_t mixed = static_cast<std::uint32_t>(out_tile / 2) * 0x9e3779b1u +
                              static_cast<std::uint32_t>(in_tile / 2) * 0x85ebca77u;
  return static_cast<int>(mixed >> 24) < held;
}

/// Bytes a step moves at least between the chip and its memory, weights only: each is read by the forward pass, and read
/// and written by the backward pass, with the optimizer's states beside it; the first layer's forward pass rides on its update.
#ifndef HEADROOM_COMPILED_ALONE
double weight_bytes_per_step(const Workload& workload, Precision precision);
#endif

}  // namespace headroom::streamed
