// How a network is laid out for cuda-fused: what is padded to what, and where everything lies.
//
// Every matrix of 16-bit values, in device memory as in shared memory, is cut into panels (machine/panels.h). Up to 16 inputs beyond
// whole panels lie in a narrow one. A tile is the 64 rows that one warpgroup takes through the network.
#pragma once

#include <cstdint>

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
#include <optional>
#include <string>

#include "core/workload.h"
#endif

#include "machine/panels.h"

namespace headroom::fused {

using namespace machine;

inline constexpr int kMaxHidden = 9, kMaxInputs = 1024, kMaxClasses = 256, kMinBatch = 128;

/// Most hidden layers of a network whose sums of weight gradients all stay on the chip.
inline constexpr int kMaxOwners = 4;

/// Who does what: kWarps, a warp takes its rows through all layers and keeps all sums (warps.cuh); kPipeline, a warpgroup owns a
/// hidden layer (pipeline.cuh); kCluster, an SM does (cluster.cuh); kPair, an SM owns two (pair.cuh); kGeneral, a warpgroup takes
/// a tile through all of them (chain.cuh); kApart, two do, and two others sum their weight gradients (apart.cuh).
enum class Form : std::int32_t { kGeneral, kWarps, kPipeline, kCluster, kPair, kApart };
/// Whether several SMs share a tile's work.
MACHINE_BOTH bool in_clusters(Form form) { return form == Form::kCluster || form == Form::kPair; }
/// Whether weights lie in the image as fragments, which owners hold in registers; else in panels.
MACHINE_BOTH bool in_fragments(Form form) { return form == Form::kPipeline || form == Form::kCluster; }

/// What a plan asks of the device: multiprocessors, and bytes of shared memory that a thread block may have.
struct Limits {
  int sm_count, shared_bytes;
};

/// What every form but kGeneral is built to stay within.
inline constexpr int kFormBytes = 227 * 1024;

/// Rows for each of a device's multiprocessors from which on pairs are faster than clusters, as measured: 32768 on 132 of them.
/// More pairs fit the device, but a tile's way is longer.
inline constexpr int kPairBatch = 32768, kPairBatchSms = 132;
inline bool is_faster_in_pairs(int batch, int sm_count) {
  return std::int64_t{batch} * kPairBatchSms >= std::int64_t{kPairBatch} * sm_count;
}

struct Plan {
  Form form;
  std::int32_t pack;                        // samples in a row of a tile, 1 or 2
  std::int32_t hidden;                      // hidden layers; the network has hidden + 1 weight matrices
  std::int32_t inputs, classes;             // as the workload says
  std::int32_t width;                       // of hidden layers, padded: 32, 64 or 128
  std::int32_t widths[kMaxHidden + 2];      // as the workload says
  std::int32_t batch, tiles;                // tiles: an even number that covers the batch
  std::int32_t input_panels, width_panels;  // of inputs: whole ones; see has_narrow_panel()
  std::int32_t class_rows, class_groups, class_panels;  // classes: one group of 16, or groups of 32

  // The image: 16-bit weights as products read them, then fp32 biases. Each layer in panels of its inputs, and the
  // last layer's outputs in groups. Or, see in_fragments(): fragments instead, see below.
  std::int32_t hidden_begin, output_begin, bias_begin, image_bytes;

  std::int32_t loss, slots;  // core/workload.h's Loss by its number; of the optimizer

  std::int64_t
      parameter_begin[kMaxHidden + 1];  // of each layer's weight in the flat parameters; its bias follows
  std::int64_t parameters;
};

/// Whether there are inputs beyond the whole panels.
MACHINE_BOTH bool has_narrow_panel(const Plan& plan) {
  return plan.inputs > plan.input_panels * kPanelColumns;
}
MACHINE_BOTH int input_tile_bytes(const Plan& plan) {
  return plan.input_panels * kTilePanelBytes + (has_narrow_panel(plan) ? kNarrowTileBytes : 0);
}
/// Whether the chain sums the gradients of the last layer's weights itself.
MACHINE_BOTH bool sums_outputs(const Plan& plan) { return plan.class_rows == kNarrowColumns; }
MACHINE_BOTH int hidden_panel_bytes(int width) { return width * kPanelRowBytes; }
MACHINE_BOTH int output_panel_bytes(const Plan& plan) { return plan.class_rows * kPanelRowBytes; }

/// Byte in the image of weight (out, in) of layer `layer` where weights lie in panels.
MACHINE_BOTH int panel_weight_offset(const Plan& plan, int layer, int out, int in) {
  const int panel = in / kPanelColumns, column = in % kPanelColumns;
  if (layer == plan.hidden) {
    const int group = out / plan.class_rows, row = out % plan.class_rows;
    return plan.output_begin + (group * plan.width_panels + panel) * output_panel_bytes(plan) +
           panel_offset(row, column);
  }
  const int bytes = hidden_panel_bytes(plan.width);
  const int begin = layer == 0 ? 0 : plan.hidden_begin + (layer - 1) * plan.width_panels * bytes;
  const bool is_narrow = layer == 0 && panel == plan.input_panels;
  return begin + panel * bytes + (is_narrow ? narrow_offset(out, column) : panel_offset(out, column));
}

// Fragments: a left factor [64, 16 * steps] as the registers that hold it, 16 bytes a thread and step.
MACHINE_BOTH int fragment_offset(int row, int k) {
  const int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
  return (k / 16 * kWarpgroup + thread) * 16 + (row / 8 % 2 + k / 8 % 2 * 2) * 4 + k % 2 * 2;
}
/// Of the upper 64 rows after the lower ones.
MACHINE_BOTH int fragment_offset(int row, int k, int columns) {
  return row / 64 * (64 * columns * 2) + fragment_offset(row % 64, k);
}
MACHINE_BOTH constexpr int forward_fragments(int width, int layer) { return layer * width * width * 2; }
MACHINE_BOTH constexpr int backward_fragments(int width, int hidden, int layer) {
  return (hidden + layer - 1) * width * width * 2;
}
MACHINE_BOTH constexpr int output_fragments(int width, int hidden) {
  return backward_fragments(width, hidden, hidden);
}
/// The output weights as panels of 16 rows; in clusters once more.
MACHINE_BOTH constexpr int output_tile(int width, int hidden) {
  return output_fragments(width, hidden) + 16 * width * 2;
}
/// The last hidden layer, a panel where others have forward fragments; in the pipeline.
MACHINE_BOTH constexpr int last_panel(int hidden) { return forward_fragments(64, hidden - 1); }

/// Calls visit(byte in the image) for every place of weight (out, in) of layer `layer`.
template <class Visit>
MACHINE_BOTH void for_each_place(const Plan& plan, int layer, int out, int in, const Visit& visit) {
  if (!in_fragments(plan.form)) {
    visit(panel_weight_offset(plan, layer, out, in));
    return;
  }
  if (layer == plan.hidden) {
    if (plan.form == Form::kCluster)
      visit(output_fragments(plan.width, plan.hidden) + fragment_offset(in, out, 16));
    visit(output_tile(plan.width, plan.hidden) + in / 64 * (16 * kPanelRowBytes) +
          panel_offset(out, in % 64));
    return;
  }
  const bool in_panel = plan.form == Form::kPipeline && layer == plan.hidden - 1;
  visit(in_panel ? last_panel(plan.hidden) + panel_offset(out, in)
                 : forward_fragments(plan.width, layer) + fragment_offset(out, in, plan.width));
  if (layer > 0)
    visit(backward_fragments(plan.width, plan.hidden, layer) + fragment_offset(in, out, plan.width));
}
/// Byte in the image of a bias.
MACHINE_BOTH int bias_place(const Plan& plan, int layer, int out) {
  return plan.bias_begin + 4 * (layer * plan.width + out);
}
MACHINE_BOTH int padded_classes(const Plan& plan) { return plan.class_rows * plan.class_groups; }

#ifndef HEADROOM_COMPILED_ALONE
/// Why cuda-fused cannot train this workload in this precision on any device, whatever its rules; nullopt if it can.
std::optional<std::string> shape_refusal(const Workload& workload, Precision precision);

/// Whether the pipeline, compiled for the network, trains these rules: ReLU with any loss and optimizer, where the batch keeps it full.
bool pipeline_trains_rules(const Workload& workload, Precision precision, const Limits& limits);

/// Throws UnsupportedError with shape_refusal()'s reason. With other rules than ReLU, cross-entropy and plain SGD it is the pipeline.
Plan make_plan(const Workload& workload, Precision precision, const Limits& limits);
#endif

}  // namespace headroom::fused
