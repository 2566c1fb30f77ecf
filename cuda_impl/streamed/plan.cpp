#include "streamed/plan.h"

#include <algorithm>
#include <stdexcept>

#include "core/error.h"
#include "streamed/logit_sums.h"

namespace headroom::streamed {
namespace {

constexpr int divided_up(int value, int by) { return (value + by - 1) / by; }

std::int64_t master_bytes(const Plan& plan) { return plan.tiles * kTileSide * kTileSide * 4; }

/// How many tiles at once: what leaves the busiest member the fewest, and of those the most.
int choose_panel(int tiles, int members, int groups) {
  int best = 1, best_owned = 0;
  for (const int panel : {1, 2, 4}) {
    if (panel * groups > kMostGroups) break;
    const int owned = divided_up(divided_up(tiles, panel), members) * panel;
    if (panel == 1 || owned <= best_owned) best = panel, best_owned = owned;
  }
  return best;
}

std::int32_t parts_of_logits(const Plan& plan) {
  return plan.narrow != 0 && plan.joined == 0 ? plan.members : 1;
}

}  // namespace

std::optional<std::string> cannot_stream(const Workload& workload, const Limits& limits) {
  if (workload.layers() < 2)
    return "cuda-streamed: one layer; it trains networks of 2 to " + std::to_string(kMaxLayers) + " layers";
  if (workload.batch_size > kMaxBatch)
    return "cuda-streamed: batch size " + std::to_string(workload.batch_size) +
           "; it trains batches of 1 to " + std::to_string(kMaxBatch);
  if (limits.shared_bytes < kSharedBytes)
    return "cuda-streamed: needs " + std::to_string(kSharedBytes) +
           " bytes of shared memory in a thread block; the device has " + std::to_string(limits.shared_bytes);
  if (workload.model.activation != Activation::kRelu)
    return "cuda-streamed: activation " + std::string(to_string(workload.model.activation)) +
           "; it trains relu";
  if (workload.loss != Loss::kCrossEntropy && workload.optimizer.slots() == 0)
    return "cuda-streamed: loss " + std::string(to_string(workload.loss)) +
           " with plain sgd; it trains it with momentum, adam and adamw";
  return std::nullopt;
}

Plan make_plan(const Workload& workload, const Limits& limits) {
  if (const auto reason = cannot_stream(workload, limits)) throw UnsupportedError(*reason);
  Plan plan{};
  plan.members = limits.sm_count;
  plan.layers = workload.layers();
  plan.batch = workload.batch_size;
  plan.groups = plan.batch <= kGroupRows ? 1 : kMostGroups;
  plan.classes = workload.classes();
  plan.narrow = divided_up(plan.classes, kTileSide) <= kNarrowTiles ? 1 : 0;
  plan.input_tiles = divided_up(workload.inputs(), kTileSide);
  int in_tiles = plan.input_tiles;
  std::int64_t parameter = 0;
  for (int index = 0; index < plan.layers; ++index) {
    LayerPlan& layer = plan.layer[index];
    layer.in = workload.model.widths[static_cast<std::size_t>(index)];
    layer.out = workload.model.widths[static_cast<std::size_t>(index) + 1];
    layer.in_tiles = in_tiles;
    const int tiles = divided_up(layer.out, kTileSide);
    const bool narrow = index == plan.layers - 1 && plan.narrow != 0;
    layer.panel = narrow ? 1 : choose_panel(tiles, plan.members, plan.groups);
    layer.out_tiles = divided_up(tiles, layer.panel) * layer.panel;
    layer.owned = divided_up(layer.out_tiles / layer.panel, plan.members) * layer.panel;
    layer.bias = static_cast<std::int32_t>(plan.biases);
    layer.kept = -1;
    layer.first_tile = plan.tiles;
    layer.first_output = plan.output_tiles;
    layer.weight_begin = parameter;
    layer.bias_begin = parameter + std::int64_t{layer.in} * layer.out;
    parameter = layer.bias_begin + layer.out;
    plan.tiles += std::int64_t{layer.in_tiles} * layer.out_tiles;
    plan.biases += std::int64_t{layer.out_tiles} * kTileSide;
    plan.output_tiles += layer.out_tiles;
    in_tiles = layer.out_tiles;
  }
  plan.logit_columns = plan.layer[plan.layers - 1].out_tiles * kTileSide;
  plan.joined =
      plan.narrow != 0 && plan.groups == 1 && plan.logit_columns == kTileSide && plan.members <= kMostParts
          ? 1
          : 0;
  plan.logit_parts = parts_of_logits(plan);
  return plan;
}

void keep_lower_halves(Plan& plan) {
  if (plan.groups > 1) return;
  for (int index = 0; index < plan.layers; ++index)
    if (plan.layer[index].panel > 1) return;
  std::int64_t used = 0;
  for (int index = 1; index < plan.layers - 1; ++index) {
    LayerPlan& layer = plan.layer[index];
    const std::int64_t bytes = std::int64_t{layer.out_tiles} * plan.layer[index - 1].owned * 512;
    if (used + bytes > kKeptBytes) continue;
    layer.kept = static_cast<std::int32_t>(used);
    used += bytes;
    plan.keeps = Kept::kLowerHalves;
  }
}

void keep_some_lower_halves(Plan& plan, int held) {
  if (held == 0 || plan.layers < 3 || one_panel_for_all(plan) != 2) return;
  LayerPlan& layer = plan.layer[1];
  const int items = divided_up(layer.out_tiles, kItemWarps);
  const int room = kPartlyKeptBytes / (kItemWarps * plan.layer[0].owned * 512);
  plan.kept_part = std::min(256, 256 * room / items);
  if (plan.kept_part == 0) return;
  layer.kept = 0;
  plan.keeps = Kept::kLowerHalves;
}

void keep_first_masters(Plan& plan, Precision precision, int held) {
  const int panel = one_panel_for_all(plan);
  const bool fp16 = precision == Precision::kFp16;
  if (!fp16 && precision != Precision::kTf32) return;
  if (held > 0 ? panel != 2 || (!fp16 && !packs_activations(plan, precision)) : panel != 1) return;
  const int bytes = panel == 2 && !fp16 ? kPackedKeptBytes : kPartlyKeptBytes;
  const int room = bytes / (plan.layer[0].owned * 1024);
  if (room == 0 || (panel == 1 && room < plan.input_tiles)) return;
  plan.kept_part = std::min(plan.input_tiles, room);
  plan.keeps = Kept::kFirstLayer;
}

int one_panel_for_all(const Plan& plan) {
  const int panel = plan.layer[0].panel;
  const auto end = plan.layer + plan.layers - plan.narrow;
  const auto other = [&](const LayerPlan& layer) { return layer.panel != panel; };
  return plan.groups > 1 || std::any_of(plan.layer, end, other) ? 0 : panel;
}

bool packs_activations(const Plan& plan, Precision precision) {
  const int panel = one_panel_for_all(plan);
  return precision == Precision::kTf32 && plan.joined != 0 && (panel == 1 || panel == 2);
}

double kept_bytes_per_step(const Plan& plan) {
  double bytes = 0;
  if (plan.keeps == Kept::kFirstLayer)
    return 8.0 * std::min(plan.layer[0].in, plan.kept_part * kTileSide) *
           plan.layer[0].out;  // read 4, written 4
  for (int index = 0; index < plan.layers; ++index) {
    const LayerPlan& layer = plan.layer[index];
    const double share = plan.kept_part > 0 ? plan.kept_part / 256.0 : 1;
    if (layer.kept >= 0) bytes += share * 4.0 * layer.in * layer.out;  // read 2, written 2
  }
  return bytes;
}

int held_share(const Plan& plan, Precision precision, std::int64_t l2_bytes) {
  const bool high_halves = precision == Precision::kBf16;
  const std::int64_t bytes = master_bytes(plan) / (high_halves ? 2 : 1);
  return static_cast<int>(std::clamp<std::int64_t>(256 * (l2_bytes / kHeldPartOfL2) / bytes, 1, 128));
}

int tiles_to_hold(const Plan& plan, Precision precision, std::int64_t l2_bytes) {
  if (plan.groups > 1 || plan.keeps != Kept::kNothing) return 0;
  const std::int64_t bytes = master_bytes(plan);
  const bool pays_below = packs_activations(plan, precision) && one_panel_for_all(plan) == 2;
  return (bytes > l2_bytes || pays_below) && bytes <= 3 * l2_bytes ? held_share(plan, precision, l2_bytes)
                                                                   : 0;
}

SlotRule slot_rule(const Optimizer& optimizer) {
  if (optimizer.slots() == 1) return SlotRule::kMomentum;
  const bool decays = optimizer.kind == Optimizer::Kind::kAdamW && optimizer.weight_decay != 0;
  return decays || optimizer.epsilon < kLeastEpsilon ? SlotRule::kAdamW : SlotRule::kAdam;
}

namespace {

/// The kernel of plain SGD.
KernelShape plain_kernel(const Plan& plan, Precision precision, int held) {
  const int panels = one_panel_for_all(plan);
  const bool is_in_halves = precision == Precision::kBf16, holds = held > 0;
  KernelShape shape{.precision = precision,
                    .packs = packs_activations(plan, precision),
                    .keeps = plan.keeps,
                    .told = !holds         ? 0
                            : is_in_halves ? 1
                                           : 2,
                    .groups = plan.groups > 1 ? kMostGroups : 1,
                    .panels = 0};
  // Also where there is room for none of them, so that there is one kernel less.
  if (shape.packs && panels == 2 && holds) shape.keeps = Kept::kFirstLayer;
  // Without code for other panels where that is known to be enough; see one_panel_for_all().
  const bool has_own_of_one_tile = precision == Precision::kTf32 || precision == Precision::kFp16;
  if (shape.packs || shape.keeps != Kept::kNothing || (has_own_of_one_tile && panels == 1 && !holds))
    shape.panels = panels;
  return shape;
}

/// Masters that take at most half of the L2, in bf16 their high halves, are held whole, else a share. In batches from 33 on the L2 is
/// told nothing.
KernelShape slot_kernel(const Plan& plan, const Workload& workload, Precision precision,
                        std::int64_t l2_bytes, int& held) {
  KernelShape shape{.precision = precision,
                    .groups = plan.groups > 1 ? kMostGroups : 1,
                    .panels = one_panel_for_all(plan),
                    .rule = slot_rule(workload.optimizer),
                    .loss = workload.loss};
  held = 0;
  if (plan.groups > 1) return shape;
  const bool in_halves = precision == Precision::kBf16;
  const std::int64_t bytes = master_bytes(plan) / (in_halves ? 2 : 1);
  const bool whole = bytes <= l2_bytes / 2;
  held = whole ? 256 : held_share(plan, precision, l2_bytes);
  if (precision == Precision::kFp32)
    shape.told = bytes <= l2_bytes ? 1 : 2;
  else
    shape.told = in_halves ? 1 : 2;
  return shape;
}

}  // namespace

PlanAndKernel plan_with_kernel(const Workload& workload, Precision precision, const Limits& limits,
                               std::int64_t l2_bytes, bool hold) {
  PlanAndKernel all{.plan = make_plan(workload, limits), .kernel = {}, .held = 0};
  Plan& plan = all.plan;
  if (workload.optimizer.slots() > 0) {
    all.kernel = slot_kernel(plan, workload, precision, l2_bytes, all.held);
    return all;
  }
  if (precision == Precision::kBf16 && !hold) keep_lower_halves(plan);
  all.held = hold ? held_share(plan, precision, l2_bytes) : tiles_to_hold(plan, precision, l2_bytes);
  if (precision == Precision::kBf16) keep_some_lower_halves(plan, all.held);
  keep_first_masters(plan, precision, all.held);
  all.kernel = plain_kernel(plan, precision, all.held);
  return all;
}

namespace {

const char* rule_name(SlotRule rule, Precision precision) {
  if (precision == Precision::kTf32 && rule != SlotRule::kMomentum) return "PlainAdam";
  switch (rule) {
    case SlotRule::kMomentum:
      return "Momentum";
    case SlotRule::kAdam:
      return "Adam";
    case SlotRule::kAdamW:
      return "AdamW";
  }
  throw std::logic_error("cuda-streamed: not a SlotRule");
}
const char* format_name(const KernelShape& shape) {
  switch (shape.precision) {
    case Precision::kFp32:
      return "Fp32";
    case Precision::kTf32:
      return shape.packs ? "PackedTf32" : "Tf32";
    case Precision::kFp16:
      return "Fp16";
    case Precision::kBf16:
      return "Bf16";
  }
  throw std::logic_error("cuda-streamed: not a Precision");
}
const char* kept_name(Kept kept) {
  return kept == Kept::kNothing ? "kNothing" : kept == Kept::kLowerHalves ? "kLowerHalves" : "kFirstLayer";
}

}  // namespace

std::string kernel_name(const KernelShape& shape) {
  const std::string space = "headroom::streamed::", told = std::to_string(shape.told);
  std::string format = space + format_name(shape);
  if (shape.rule) {
    format =
        space + "WithSlots<" + format + ", " + space + rule_name(*shape.rule, shape.precision) + ", " + told;
    if (shape.loss == Loss::kMeanSquaredError) format += ", headroom::Loss::kMeanSquaredError";
    if (shape.loss == Loss::kBinaryCrossEntropy) format += ", headroom::Loss::kBinaryCrossEntropy";
    format += ">";
  } else if (shape.keeps != Kept::kNothing || shape.told > 0) {
    format =
        space + "Placed<" + format + ", " + space + "Kept::" + kept_name(shape.keeps) + ", " + told + ">";
  }
  return space + "streamed_steps<" + format + ", " + std::to_string(shape.groups) + ", " +
         std::to_string(shape.panels) + ">";
}

std::string short_name(const KernelShape& shape) {
  std::string name = kernel_name(shape);
  name = name.substr(name.find('<') + 1);
  name.pop_back();
  for (const std::string space : {"headroom::streamed::", "headroom::"})
    for (std::size_t at; (at = name.find(space)) != name.npos;) name.erase(at, space.size());
  return name;
}

double weight_bytes_per_step(const Workload& workload, Precision precision) {
  const double forward = precision == Precision::kBf16 ? 2 : 4, backward = 8 + 8 * workload.optimizer.slots();
  double bytes = 0;
  for (int layer = 0; layer < workload.layers(); ++layer) {
    const auto index = static_cast<std::size_t>(layer);
    const double weights =
        static_cast<double>(workload.model.widths[index]) * workload.model.widths[index + 1];
    bytes += weights * (backward + (layer == 0 ? 0 : forward));
  }
  return bytes;
}

}  // namespace headroom::streamed
