// How a narrow network is trained on the chip: who takes which rows, and where everything lies. All of it is a constant when the kernel
// is compiled.
//
// A tile is so many rows of the batch that a thread block takes through the network at once. Of a tile a *strip* is what one *team* of
// warps takes, each its columns of every layer. Activations [row][column] and weights [output][input] lie in shared memory, their
// rows padded so that the lanes of a warp read from different banks. Behind the last column of an activation is a column of
// ones: with it a layer's bias gradients are one more column of its weight gradients.
#pragma once

#include <cstdint>

#include "core/workload.h"

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
#include <optional>
#include <string>
#endif

#ifdef __CUDACC__
#define NARROW_BOTH __host__ __device__ constexpr
#else
#define NARROW_BOTH constexpr
#endif

namespace headroom::narrow {

inline constexpr int kMaxLayers = 10, kMaxWidth = 128;
inline constexpr int kRows = 16, kColumns = 8;  ///< of a product's smallest piece: mma's, in all precisions
inline constexpr int kMaxWarps = 16, kMinWarps = 4, kMaxCluster = 8;

struct Plan {
  std::int32_t layers, widths[kMaxLayers + 1];  ///< inputs, hidden layers, outputs
  std::int32_t batch;
  std::int32_t precision, activation, loss, slots;  ///< the first three as core/workload.h numbers them
  std::int32_t is_clustered;                        ///< the thread blocks are one cluster
  std::int32_t blocks, strips, team;                ///< team: warps of one
  std::int32_t tall;                                ///< a strip has so many times kRows rows
  std::int32_t
      sums_in_memory;  ///< sums are added up outside of registers, tile by tile, as they are too many for these
  std::int32_t
      row_parts;  ///< so many parts of a tile's rows have sums of their own: a warp then has larger products
  std::int32_t sum_tall;  ///< of a layer's sums a warp has so many times kRows outputs at most
};

NARROW_BOTH int divide_up(int a, int b) { return (a + b - 1) / b; }
NARROW_BOTH int round_up(int a, int b) { return divide_up(a, b) * b; }
NARROW_BOTH int larger(int a, int b) { return a > b ? a : b; }
NARROW_BOTH int smaller(int a, int b) { return a < b ? a : b; }

NARROW_BOTH bool is(const Plan& plan, Precision precision) {
  return plan.precision == static_cast<int>(precision);
}
NARROW_BOTH int value_bytes(const Plan& plan) {
  return is(plan, Precision::kFp16) || is(plan, Precision::kBf16) ? 2 : 4;
}
/// Terms of a sum that one instruction, or one load of fp32 values, takes.
NARROW_BOTH int depth(const Plan& plan) {
  return value_bytes(plan) == 2 ? 16 : is(plan, Precision::kTf32) ? 8 : 4;
}
/// Values of a row that has `columns` of them, in shared memory and in device memory.
NARROW_BOTH int stride(const Plan& plan, int columns) {
  const int whole = round_up(round_up(columns, depth(plan)), kColumns);
  if (value_bytes(plan) == 2) return whole / 8 % 2 == 1 ? whole : whole + 8;
  if (is(plan, Precision::kTf32)) return whole / 8 % 2 == 1 ? whole : whole + 8;
  return whole + 4;
}
NARROW_BOTH int warps(const Plan& plan) { return plan.strips * plan.team; }
NARROW_BOTH int threads(const Plan& plan) { return 32 * warps(plan); }
NARROW_BOTH int strip_rows(const Plan& plan) { return kRows * plan.tall; }
NARROW_BOTH int tile_rows(const Plan& plan) { return strip_rows(plan) * plan.strips; }
NARROW_BOTH int tiles(const Plan& plan) { return divide_up(plan.batch, tile_rows(plan)); }
NARROW_BOTH bool keeps_sums(const Plan& plan) {
  return plan.activation == static_cast<int>(Activation::kSilu) ||
         plan.activation == static_cast<int>(Activation::kGelu);
}

// ---- activations; layer 0: inputs. With the column of ones.

NARROW_BOTH int activation_stride(const Plan& plan, int layer) {
  return stride(plan, plan.widths[layer] + 1);
}
NARROW_BOTH int activation_bytes(const Plan& plan, int layer) {
  return tile_rows(plan) * activation_stride(plan, layer) * value_bytes(plan);
}
/// Words of a sample's targets, or its label.
NARROW_BOTH int target_stride(const Plan& plan) {
  return plan.loss == static_cast<int>(Loss::kCrossEntropy) ? 1 : round_up(plan.widths[plan.layers], 4);
}
NARROW_BOTH int target_bytes(const Plan& plan) { return tile_rows(plan) * target_stride(plan) * 4; }
/// Of gradients, which all layers have in turn.
NARROW_BOTH int gradient_stride(const Plan& plan, int layer) { return activation_stride(plan, layer); }
NARROW_BOTH int gradient_bytes(const Plan& plan) {
  int most = 0;
  for (int layer = 1; layer <= plan.layers; ++layer) most = larger(most, activation_bytes(plan, layer));
  return most;
}

// ---- the image: what products read of the parameters, as it lies in shared memory and in device memory. Layers count from 1.

NARROW_BOTH int weight_stride(const Plan& plan, int layer) { return stride(plan, plan.widths[layer - 1]); }
NARROW_BOTH int weight_begin(const Plan& plan, int layer) {
  int bytes = 0;
  for (int l = 1; l < layer; ++l)
    bytes += round_up(plan.widths[l], kRows) * weight_stride(plan, l) * value_bytes(plan);
  return bytes;
}
NARROW_BOTH int bias_begin(const Plan& plan, int layer) {
  int bytes = weight_begin(plan, plan.layers + 1);
  for (int l = 1; l < layer; ++l) bytes += round_up(plan.widths[l], kColumns) * 4;
  return bytes;
}
NARROW_BOTH int image_bytes(const Plan& plan) { return round_up(bias_begin(plan, plan.layers + 1), 16); }

// ---- sums of weight gradients. A layer's are cut into pieces of 16 outputs and 8 inputs, inputs first; a piece is 128 floats, four for
// each lane. Masters and slots lie in the same order.

NARROW_BOTH int output_pieces(const Plan& plan, int layer) { return divide_up(plan.widths[layer], kRows); }
NARROW_BOTH int input_pieces(const Plan& plan, int layer) {
  return divide_up(plan.widths[layer - 1] + 1, kColumns);
}
NARROW_BOTH int first_piece(const Plan& plan, int layer) {
  int pieces = 0;
  for (int l = 1; l < layer; ++l) pieces += output_pieces(plan, l) * input_pieces(plan, l);
  return pieces;
}
NARROW_BOTH int sum_pieces(const Plan& plan) { return first_piece(plan, plan.layers + 1); }
/// Warps of a part of the rows share a layer out: each has so many pieces of outputs by so many of inputs.
NARROW_BOTH int sum_warps(const Plan& plan) { return warps(plan) / plan.row_parts; }
NARROW_BOTH int output_pieces_of_warp(const Plan& plan, int layer) {
  return smaller(plan.sum_tall, output_pieces(plan, layer));
}
NARROW_BOTH int output_groups(const Plan& plan, int layer) {
  return divide_up(output_pieces(plan, layer), output_pieces_of_warp(plan, layer));
}
NARROW_BOTH int input_groups(const Plan& plan, int layer) {
  return sum_warps(plan) / output_groups(plan, layer);
}
NARROW_BOTH int input_pieces_of_warp(const Plan& plan, int layer) {
  return divide_up(input_pieces(plan, layer), input_groups(plan, layer));
}
NARROW_BOTH int first_piece_of_warp(const Plan& plan, int layer) {
  int pieces = 0;
  for (int l = 1; l < layer; ++l) pieces += output_pieces_of_warp(plan, l) * input_pieces_of_warp(plan, l);
  return pieces;
}
/// That a warp keeps from tile to tile.
NARROW_BOTH int kept_pieces_of_warp(const Plan& plan) {
  return plan.sums_in_memory ? 0 : first_piece_of_warp(plan, plan.layers + 1);
}
/// Sets of sums that are added up at the end of a step.
NARROW_BOTH int sum_sets(const Plan& plan) { return plan.blocks * plan.row_parts; }
/// Whether blocks see each other's shared memory, so that sums need no other way.
NARROW_BOTH bool is_local(const Plan& plan) { return plan.blocks == 1 || plan.is_clustered != 0; }

/// Fours of floats that each thread block adds up of all blocks' sums, and trains.
NARROW_BOTH int owned_fours(const Plan& plan) { return divide_up(sum_pieces(plan) * 32, plan.blocks); }
/// Floats of the sums, and of masters and slots: all blocks own as many.
NARROW_BOTH int sum_floats(const Plan& plan) { return 4 * owned_fours(plan) * plan.blocks; }
/// Parts of the sets that different threads add up.
NARROW_BOTH int sum_parts(const Plan& plan) {
  return larger(1, smaller(sum_sets(plan), threads(plan) / owned_fours(plan)));
}

/// The parameter of a sum by its place among them; in == inputs: a bias; layer == 0: none.
struct Target {
  int layer, out, in;
};
NARROW_BOTH Target target_of(const Plan& plan, int sum) {
  int piece = sum / 128, layer = 1;
  const int lane = sum / 4 % 32, value = sum % 4;
  for (; layer <= plan.layers; ++layer) {
    const int pieces = output_pieces(plan, layer) * input_pieces(plan, layer);
    if (piece < pieces) break;
    piece -= pieces;
  }
  if (layer > plan.layers) return {0, 0, 0};
  const int across = input_pieces(plan, layer);
  const int out = piece / across * kRows + lane / 4 + 8 * (value / 2);
  const int in = piece % across * kColumns + 2 * (lane % 4) + value % 2;
  if (out >= plan.widths[layer] || in > plan.widths[layer - 1]) return {0, 0, 0};
  return {layer, out, in};
}
/// Its place in the flat parameters of core/parameters.h.
NARROW_BOTH int parameter_of(const Plan& plan, const Target& target) {
  int begin = 0;
  for (int l = 1; l < target.layer; ++l) begin += (plan.widths[l - 1] + 1) * plan.widths[l];
  const int ins = plan.widths[target.layer - 1];
  return target.in == ins ? begin + ins * plan.widths[target.layer] + target.out
                          : begin + target.out * ins + target.in;
}
/// Where it lies in the image, in bytes.
NARROW_BOTH int place_of(const Plan& plan, const Target& target) {
  if (target.in == plan.widths[target.layer - 1]) return bias_begin(plan, target.layer) + 4 * target.out;
  return weight_begin(plan, target.layer) +
         (target.out * weight_stride(plan, target.layer) + target.in) * value_bytes(plan);
}

// ---- shared memory, in bytes

struct Places {
  int inputs[2], targets[2], activations[kMaxLayers], kept[kMaxLayers], gradients[2];
  int kept_begin;                ///< from here on nothing is brought by copies
  int partials;                  ///< this block's sums, where blocks are local
  int own_values, own_slots[2];  ///< of the parameters that this block trains; none with sums_in_memory
  int factors;                   ///< of the step's update
  int own_places;                ///< of the parameters that this block trains, in the image
  int scratch, losses, end;
};
NARROW_BOTH Places places(const Plan& plan) {
  Places at{};
  int next = image_bytes(plan);
  const auto take = [&](int bytes) {
    const int begin = next;
    next += round_up(bytes, 16);
    return begin;
  };
  for (int i = 0; i < 2; ++i) at.inputs[i] = take(activation_bytes(plan, 0));
  for (int i = 0; i < 2; ++i) at.targets[i] = take(target_bytes(plan));
  at.kept_begin = next;
  for (int layer = 1; layer < plan.layers; ++layer) {
    at.activations[layer] = take(activation_bytes(plan, layer));
    if (keeps_sums(plan)) at.kept[layer] = take(activation_bytes(plan, layer));
  }
  for (int i = 0; i < 2; ++i) at.gradients[i] = take(gradient_bytes(plan));
  if (is_local(plan)) at.partials = take(4 * sum_floats(plan) * plan.row_parts);
  if (!plan.sums_in_memory) {
    at.own_values = take(16 * owned_fours(plan));
    for (int slot = 0; slot < plan.slots; ++slot) at.own_slots[slot] = take(16 * owned_fours(plan));
  }
  at.factors = take(32);
  at.own_places = take(16 * owned_fours(plan));
  at.scratch = take(16 * owned_fours(plan) * sum_parts(plan));
  at.losses = take(4 * kMaxWarps);
  at.end = next;
  return at;
}
NARROW_BOTH int shared_bytes(const Plan& plan) { return places(plan).end; }

/// Registers of a thread that its sums take.
NARROW_BOTH int sum_registers(const Plan& plan) { return 4 * kept_pieces_of_warp(plan); }
/// What a thread may have for sums and for the largest product at once; the rest is for addresses and factors.
NARROW_BOTH int most_sum_registers(const Plan& plan) {
  const int of_thread =
      smaller(255, 2048 / round_up(warps(plan), 4) / 8 * 8);  // four schedulers have 512 of a lane each
  return of_thread - (value_bytes(plan) == 2 ? 60 : is(plan, Precision::kTf32) ? 88 : 76);
}
NARROW_BOTH int product_registers(const Plan& plan) {
  int most = 0;
  for (int layer = 0; layer <= plan.layers; ++layer) {
    const int pieces = divide_up(plan.widths[layer], kColumns);
    most = larger(most, plan.tall * (layer == plan.layers ? pieces : divide_up(pieces, plan.team)));
    if (plan.sums_in_memory && layer > 0)
      most = larger(most, output_pieces_of_warp(plan, layer) * input_pieces_of_warp(plan, layer));
  }
  return 4 * most;
}
NARROW_BOTH bool fits(const Plan& plan, int shared_limit, int spare) {
  if (warps(plan) < kMinWarps || warps(plan) > kMaxWarps || warps(plan) % plan.row_parts != 0 ||
      tile_rows(plan) % (plan.row_parts * depth(plan)) != 0)
    return false;
  for (int layer = 1; layer <= plan.layers; ++layer)
    if (input_groups(plan, layer) == 0) return false;
  return shared_bytes(plan) <= shared_limit &&
         sum_registers(plan) + product_registers(plan) + spare <= most_sum_registers(plan);
}

struct Limits {
  int sm_count, shared_bytes;
};

/// Cycles of a multiprocessor for a product of so many warps that each have `tall` by `pieces` sums, over so many terms: what shared memory
/// brings, 128 bytes a cycle and each lane its own, or what its four schedulers issue, or what one warp waits.
NARROW_BOTH long product_cycles(const Plan& plan, int active_warps, int tall, int pieces, int terms) {
  const bool is_fp32 = is(plan, Precision::kFp32);
  const int steps = divide_up(terms, depth(plan));
  const int brought = value_bytes(plan) == 2 ? 4 * tall + 4 * divide_up(pieces, 2)
                      : is_fp32              ? 4 * (2 * tall + 2 * pieces)
                                             : 4 * tall + 2 * pieces;
  const int issued = is_fp32 ? 16 * tall * pieces + 2 * (tall + pieces) : 8 * tall * pieces;
  return steps * larger(active_warps * brought, larger(divide_up(active_warps, 4) * issued, 50)) + 150L;
}
/// Of a tile.
NARROW_BOTH long tile_cycles(const Plan& plan) {
  long cycles = 400;
  const bool is_short = plan.activation == static_cast<int>(Activation::kRelu);
  const int instructions = is_short ? 5 : is(plan, Precision::kFp32) ? 30 : 12;
  for (int layer = 1; layer <= plan.layers; ++layer) {
    const int pieces = divide_up(plan.widths[layer], kColumns), of_warp = divide_up(pieces, plan.team),
              before = divide_up(plan.widths[layer - 1], kColumns),
              of_warp_before = divide_up(before, plan.team);
    const bool is_last = layer == plan.layers;
    const int active = is_last ? plan.strips : plan.strips * divide_up(pieces, of_warp);
    cycles += product_cycles(plan, active, plan.tall, is_last ? pieces : of_warp, plan.widths[layer - 1]);
    if (layer > 1)
      cycles += product_cycles(plan, plan.strips * divide_up(before, of_warp_before), plan.tall,
                               of_warp_before, plan.widths[layer]);
    const int across = input_pieces_of_warp(plan, layer);
    cycles += product_cycles(
        plan, plan.row_parts * output_groups(plan, layer) * divide_up(input_pieces(plan, layer), across),
        output_pieces_of_warp(plan, layer), across, tile_rows(plan) / plan.row_parts);
    // Activations forward, and slopes back.
    cycles += divide_up(active, 4) * plan.tall * (is_last ? pieces : of_warp) * 4L * (instructions + 5) + 250;
  }
  return cycles;
}
/// Of a step, roughly, as measured on an H200: sums and slots are added up and trained by all threads.
NARROW_BOTH long step_cycles(const Plan& plan) {
  const long tiles_of_block = divide_up(tiles(plan), plan.blocks), floats = sum_floats(plan);
  long cycles = tiles_of_block * tile_cycles(plan) + 1500 +
                300L * divide_up(4 * owned_fours(plan), threads(plan)) +
                (is_local(plan) ? 20L : 130L) * sum_sets(plan) * owned_fours(plan) / threads(plan);
  if (plan.sums_in_memory) cycles += tiles_of_block * (400 + floats * 8 / 35);
  if (plan.blocks > 1)
    cycles += is_local(plan) ? 1500 + floats * plan.row_parts / 32 : 6000 + floats * plan.row_parts / 16;
  return cycles;
}

/// The best of the plans that fit, by their cycles; blocks == 0: none does. `plan` says what is trained.
/// `spare`: registers of a thread to be left beside those that are counted.
NARROW_BOTH Plan make_plan(Plan plan, const Limits& limits, int spare = 0) {
  Plan best = plan;
  best.blocks = 0;
  long best_cycles = 0;
  const auto try_this = [&] {
    plan.blocks = smaller(tiles(plan), plan.is_clustered ? kMaxCluster : limits.sm_count);
    if (!fits(plan, limits.shared_bytes, spare)) return;
    const long cycles = step_cycles(plan);
    if (best.blocks == 0 || cycles < best_cycles) best = plan, best_cycles = cycles;
  };
  for (plan.tall = 1; plan.tall <= (is(plan, Precision::kFp32) ? 4 : 2); plan.tall *= 2)
    for (plan.strips = 1; plan.strips <= 8; ++plan.strips)
      for (plan.team = 1; plan.team * plan.strips <= kMaxWarps; ++plan.team)
        for (plan.row_parts = 1; plan.row_parts <= 2; ++plan.row_parts)
          for (plan.sum_tall = 1; plan.sum_tall <= 4; plan.sum_tall *= 2)
            for (plan.is_clustered = 0; plan.is_clustered <= 1; ++plan.is_clustered) {
              plan.sums_in_memory = 0;
              try_this();
              plan.sums_in_memory = 1;
              if (plan.row_parts == 1) try_this();
            }
  return best;
}

#ifndef HEADROOM_COMPILED_ALONE
/// What is trained, before anything is chosen. The widths have to be in range: see refusal().
Plan plan_of(const Workload& workload, Precision precision);
/// Why this is not trained on a device with these limits; nullopt if it is.
std::optional<std::string> refusal(const Workload& workload, Precision precision, const Limits& limits);
#endif

}  // namespace headroom::narrow
