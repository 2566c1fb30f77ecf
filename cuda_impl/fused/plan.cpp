#include "fused/plan.h"

#include <algorithm>

#include "core/error.h"

namespace headroom::fused {
namespace {

int divide_up(int value, int by) { return (value + by - 1) / by; }

/// Whether tiles' way apart from sums is faster than the pipeline. It takes two tiles a round on each SM, the pipeline one after
/// the other: so in up to four rounds, if most of the last one's tiles are there.
bool is_faster_apart(int batch, int sm_count) {
  const int round_rows = sm_count * 2 * kTileRows, rounds = divide_up(batch, round_rows);
  return rounds == 1 || (rounds <= 4 && rounds * round_rows - batch < round_rows / 2);
}

int widest_hidden(const Workload& workload) {
  return *std::max_element(workload.model.widths.begin() + 1, workload.model.widths.end() - 1);
}

void place_image(Plan& plan) {
  if (in_fragments(plan.form)) {
    plan.bias_begin = output_tile(plan.width, plan.hidden) + 16 * plan.width * 2;
  } else {
    plan.hidden_begin = plan.input_panels * hidden_panel_bytes(plan.width) +
                        (has_narrow_panel(plan) ? plan.width * kNarrowRowBytes : 0);
    plan.output_begin =
        plan.hidden_begin + (plan.hidden - 1) * plan.width_panels * hidden_panel_bytes(plan.width);
    plan.bias_begin = plan.output_begin + plan.class_groups * plan.width_panels * output_panel_bytes(plan);
  }
  plan.image_bytes = plan.bias_begin + 4 * (plan.hidden * plan.width + padded_classes(plan));
}

}  // namespace

std::optional<std::string> shape_refusal(const Workload& workload, Precision precision) {
  const auto number = [](auto value) { return std::to_string(value); };
  if (precision != Precision::kFp16 && precision != Precision::kBf16)
    return std::string(to_string(precision)) + "; it trains in fp16 and bf16";
  if (workload.layers() < 2 || workload.layers() > kMaxHidden + 1)
    return number(workload.layers()) + " layers; it trains 2 to " + number(kMaxHidden + 1);
  if (widest_hidden(workload) > 128)
    return "a hidden width of " + number(widest_hidden(workload)) + "; it trains up to 128";
  if (workload.inputs() > kMaxInputs)
    return number(workload.inputs()) + " inputs; it trains up to " + number(kMaxInputs);
  if (workload.classes() > kMaxClasses)
    return number(workload.classes()) + " classes; it trains up to " + number(kMaxClasses);
  if (workload.batch_size < kMinBatch)
    return "batch size " + number(workload.batch_size) + "; it trains " + number(kMinBatch) + " and more";
  return std::nullopt;
}

bool pipeline_trains_rules(const Workload& workload, Precision precision, const Limits& limits) {
  constexpr int kTilesOfFullPipeline = 4;
  return !shape_refusal(workload, precision) && workload.model.activation == Activation::kRelu &&
         workload.layers() <= kMaxOwners + 1 && workload.outputs() <= 16 &&
         std::max(widest_hidden(workload), workload.inputs()) <= kPanelColumns &&
         workload.batch_size >= kTilesOfFullPipeline * kTileRows * limits.sm_count;
}

Plan make_plan(const Workload& workload, Precision precision, const Limits& limits) {
  if (const auto refusal = shape_refusal(workload, precision))
    throw UnsupportedError("cuda-fused: " + *refusal);
  Plan plan{};
  plan.hidden = workload.layers() - 1;
  plan.inputs = workload.inputs();
  plan.classes = workload.classes();
  std::copy(workload.model.widths.begin(), workload.model.widths.end(), plan.widths);
  const int widest = widest_hidden(workload), features = std::max(widest, plan.inputs);
  const bool owners = plan.hidden <= kMaxOwners && plan.classes <= 16;
  plan.form = owners && features <= 32                       ? Form::kWarps
              : owners && features <= 64                     ? Form::kPipeline
              : owners && features <= 128 && plan.hidden > 1 ? Form::kCluster
                                                             : Form::kGeneral;
  if (plan.form == Form::kCluster && plan.hidden == 4 &&
      is_faster_in_pairs(workload.batch_size, limits.sm_count))
    plan.form = Form::kPair;
  if (plan.form == Form::kPipeline && is_faster_apart(workload.batch_size, limits.sm_count))
    plan.form = Form::kApart;
  plan.loss = static_cast<std::int32_t>(workload.loss);
  plan.slots = workload.optimizer.slots();
  if (!beyond_plain_training(workload).empty()) plan.form = Form::kPipeline;
  plan.pack = plan.form == Form::kWarps ? 2 : 1;
  plan.width = in_clusters(plan.form)                                      ? 128
               : plan.form == Form::kPipeline || plan.form == Form::kApart ? 64
               : widest <= 32                                              ? 32
               : widest <= 64                                              ? 64
                                                                           : 128;
  plan.batch = workload.batch_size;
  plan.tiles = plan.form != Form::kGeneral ? divide_up(plan.batch, plan.pack * kTileRows)
                                           : 2 * divide_up(plan.batch, 2 * kTileRows);
  const int rest = plan.inputs % kPanelColumns;
  const bool narrow = plan.form == Form::kGeneral && rest > 0 && rest <= kNarrowColumns;
  plan.input_panels = in_clusters(plan.form) ? 2
                      : narrow               ? plan.inputs / kPanelColumns
                                             : divide_up(plan.inputs, kPanelColumns);
  plan.width_panels = divide_up(plan.width, kPanelColumns);
  plan.class_rows = plan.classes <= 16 ? 16 : 32;
  plan.class_groups = divide_up(plan.classes, plan.class_rows);
  plan.class_panels = divide_up(plan.classes, kPanelColumns);

  place_image(plan);

  for (int layer = 0; layer <= plan.hidden; ++layer) {
    plan.parameter_begin[layer] = plan.parameters;
    plan.parameters += std::int64_t{plan.widths[layer]} * plan.widths[layer + 1] + plan.widths[layer + 1];
  }
  return plan;
}

}  // namespace headroom::fused
