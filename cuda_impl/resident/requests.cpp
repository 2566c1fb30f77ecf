#include "resident/requests.h"

#include <stdexcept>
#include <utility>

#include "core/error.h"
#include "resident/block_arguments.h"
#include "resident/column_peers.h"
#include "resident/patch_arguments.h"
#include "resident/slice_arguments.h"
#include "resident/slice_ranks.h"
#include "resident/slice_slots.h"

namespace headroom::resident {
namespace {

std::string number(int value) { return std::to_string(value); }
bool in_sixteen_bits(Precision precision) {
  return precision == Precision::kFp16 || precision == Precision::kBf16;
}
std::string ours(const std::string& name) { return "headroom::resident::" + name; }

std::string format_of(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return "SliceFp32";
    case Precision::kTf32:
      return "SliceTf32";
    case Precision::kFp16:
      return "SliceFp16";
    case Precision::kBf16:
      return "SliceBf16";
  }
  throw std::logic_error("format_of: not a Precision");
}
std::string exchange_of(const SlicePlan& plan) {
  return ours(plan.form == Form::kCluster ? "SliceCluster" : "SliceGrid");
}

/// Layers that the step is unrolled for; 0: it loops over them. An unrolled step in fp32, or of more pairs, is longer than the
/// instruction cache. With the plan as an argument only four layers of tf32 with two pairs are, which were measured so.
int unrolled_layers(const SlicePlan& plan, Precision precision, PlanForm form) {
  if (precision == Precision::kFp32 || plan.own != 1) return 0;
  const bool sixteen = in_sixteen_bits(precision);
  if (form == PlanForm::kArgument)
    return !sixteen && plan.form == Form::kGrid && plan.team == 2 && plan.pairs == 2 && plan.layers == 4 ? 4
                                                                                                         : 0;
  return sixteen || plan.pairs <= 2 ? plan.layers : 0;
}

/// The header and the class of the members of a slice kernel; the first of the template's arguments is the format.
std::pair<std::string, std::string> members_of(const SlicePlan& plan, Precision precision, PlanForm form) {
  const std::string format = ours(format_of(precision));
  const bool sixteen = in_sixteen_bits(precision);
  if (in_pair_clusters(plan) && sixteen)
    return {"slice_whole_pair.cuh", "SliceWholePair<" + format + ", " + number(clusters(plan)) + ">"};
  if (plan.form == Form::kGrid && divides_rows(precision, plan.team, plan.own))
    return {"slice_rows.cuh", "SliceRowsMember<" + format + ">"};
  if (turns_tiles(precision, plan.layers, plan.team, plan.own))
    return {"slice_turned.cuh",
            "SliceTurnedMember<" + (precision == Precision::kBf16 ? ours("SliceFiniteBf16") : format) + ">"};
  if (sums_ahead(plan))
    return {"slice_ahead.cuh", "SliceAheadMember<" + format + ", " + number(plan.team) + ", " +
                                   number(ahead_slices(plan)) + ", " + number(gram_teams(plan)) + ">"};
  if (packs_tiles(precision, plan.layers, plan.team, plan.own))
    return {"slice_packed.cuh", "SlicePackedMember<" + format + ">"};
  if (sums_whole(precision, plan)) {
    if (sixteen) return {"slice_whole.cuh", "SliceWholeMember<" + format + ">"};
    if (plan.own == 2) return {"slice_wide_rows.cuh", "SliceWideRowsMember<" + format + ">"};
    return {"slice_whole_rows.cuh", "SliceWholeRowsMember<" + format + ">"};
  }
  return {"slice_step.cuh", "SliceMember<" + format + ", " + exchange_of(plan) + ", " + number(plan.pairs) +
                                ", " + number(unrolled_layers(plan, precision, form)) + ", " +
                                number(plan.team) + ", " + number(plan.own) + ">"};
}

/// Bytes of local memory that a kernel with its plan as an argument may have. The published ones have up to 108 by nvcc 13.0, in
/// places that a step passes once. For GPUs newer than 9.0, where no registers are handed from warp to warp, some have 268.
constexpr int kArgumentLocalBytes = 512;

/// For people: "bf16, 4 layers, batch 32", or what of that a kernel is for.
std::string described(Precision precision, int layers, int batch) {
  return std::string(to_string(precision)) + ", " + number(layers) + " layers, batch " + number(batch);
}

jit::Request request(const SlicePlan& plan, Precision precision, PlanForm form) {
  if (!has_slice_kernel(plan, precision))
    throw UnsupportedError("cuda-resident: no kernel in " + std::string(to_string(precision)) + " for " +
                           std::string(to_string(plan.form)) + "s in which " + number(plan.team) +
                           " thread blocks own " + number(plan.own) + " slices of " + number(plan.pairs) +
                           " pairs a warp");
  if (form == PlanForm::kChosen) form = plan_form_of(plan, precision);
  const auto [header, members] = members_of(plan, precision, form);
  jit::Request request;
  request.headers = {"resident/" + header};
  request.kernel = ours("slice_steps<") + ours(members) + ">";
  request.text = "static_assert(" + ours(members) +
                 "::kThreadCount == " + number(slice_threads(plan, precision)) +
                 ", \"slice_threads() has another number\");\n";
  request.name = "cuda-resident " + header.substr(0, header.find('.')) + ", ";
  if (form == PlanForm::kConstants) {
    request.constants = {{"SLICE_PLAN", jit::as_words(plan)}};
    request.name += described(precision, plan.layers, plan.batch);
  } else {
    request.name += std::string(to_string(precision)) + ", any network";
    request.most_local_bytes = kArgumentLocalBytes;
  }
  request.argument_type = ours("SliceArguments");
  request.argument_bytes = sizeof(SliceArguments);
  return request;
}

jit::Request request(const BlockPlan&, Precision, PlanForm) {
  jit::Request request;
  request.headers = {"resident/block_step.cuh"};
  request.kernel = ours("block_steps");
  request.name = "cuda-resident block_step, fp32, any network";
  request.argument_type = ours("BlockArguments");
  request.argument_bytes = sizeof(BlockArguments);
  return request;
}

jit::Request request(const PatchPlan&, Precision precision, PlanForm) {
  jit::Request request;
  request.headers = {"resident/patch_step.cuh"};
  request.kernel = ours("patch_steps<") + ours(precision == Precision::kFp16 ? "Fp16Type" : "Bf16Type") + ">";
  request.name = "cuda-resident patch_step, " + std::string(to_string(precision)) + ", any network";
  request.most_local_bytes = kArgumentLocalBytes;
  request.argument_type = ours("PatchArguments");
  request.argument_bytes = sizeof(PatchArguments);
  return request;
}

jit::Request column_request(const ColumnPlan& plan, Precision precision, int ranks) {
  const ColumnShape& shape = plan.shape;
  std::string numbers;
  for (const int value :
       {shape.hidden, shape.members, shape.clusters, shape.input_pairs, shape.register_masters, shape.slots,
        shape.memory_slots, shape.activation, shape.loss, shape.halves})
    numbers += (numbers.empty() ? "" : ", ") + number(value);
  jit::Request request;
  request.headers = {"resident/column_step.cuh"};
  request.kernel = ours("column_steps<") + ours("ColumnStep<") + ours(format_of(precision)) + ", " +
                   ours("ColumnShape{") + numbers + (ranks > 1 ? "}, " + number(ranks) + ">>" : "}>>");
  request.name = "cuda-resident columns, " + described(precision, shape.hidden + 1, plan.batch) +
                 (ranks > 1 ? ", " + number(ranks) + " devices" : "");
  request.constants = {{"COLUMN_PLAN", jit::as_words(plan)}};
  request.argument_type = ours(ranks > 1 ? "RankArguments" : "ColumnArguments");
  request.argument_bytes = ranks > 1 ? sizeof(RankArguments) : sizeof(ColumnArguments);
  // Exact quotients and roots, and subnormal ones, are most of Adam's update; these are good to two units in the last place. A gradient
  // of less than 1e-38 is nothing beside its epsilon.
  if (shape.slots > 0 || shape.activation != static_cast<int>(Activation::kRelu) ||
      shape.loss != static_cast<int>(Loss::kCrossEntropy)) {
    request.options = {"--prec-div=false", "--prec-sqrt=false", "--ftz=true"};
    request.most_local_bytes = 128;  // GELU at 256 columns; with Adam alone 8 there in fp16
  }
  if (ranks > 1) request.most_local_bytes = 512;  // GELU and Adam at 256 columns; none with plain training
  if (shape.halves > 1)
    request.most_local_bytes = 128;  // at 256 columns, most of it addresses, which stay for the whole launch
  return request;
}

jit::Request request(const ColumnPlan& plan, Precision precision, PlanForm) {
  return column_request(plan, precision, 1);
}
jit::Request request(const RankPlan& plan, Precision precision, PlanForm) {
  return column_request(plan.columns, precision, plan.ranks);
}

jit::Request request(const SlotPlan& plan, Precision precision, PlanForm) {
  const SlicePlan& slices = plan.slices;
  const std::string members = ours("SliceSlotsMember<") + ours(format_of(precision)) + ", " +
                              exchange_of(slices) + ", " + number(slices.pairs) + ", " +
                              number(unrolled_layers(slices, precision, PlanForm::kConstants)) + ", " +
                              number(slices.team) + ", " + number(plan.slots) + ">";
  jit::Request request;
  request.headers = {"resident/slice_slots.cuh"};
  request.kernel = ours("slice_slots_steps<") + members + ">";
  request.text = "static_assert(" + members + "::kThreadCount == " + number(plan.threads) +
                 ", \"the plan has another number\");\n";
  request.name = "cuda-resident slices with " + number(plan.slots) +
                 (plan.slots == 1 ? " slot, " : " slots, ") +
                 described(precision, slices.layers, slices.batch);
  request.constants = {{"SLICE_PLAN", jit::as_words(slices)}};
  request.argument_type = ours("SlotArguments");
  request.argument_bytes = sizeof(SlotArguments);
  request.options = {"--prec-div=false", "--prec-sqrt=false", "--ftz=true"};
  request.most_local_bytes = 256;  // tf32 at 512 columns; none elsewhere
  return request;
}

jit::Request request(const SliceRankPlan& plan, Precision precision, PlanForm) {
  jit::Request request;
  request.headers = {"resident/slice_ranks.cuh"};
  request.kernel = ours("slice_rank_steps<") + ours("SliceRanksMember<") + ours(format_of(precision)) + ", " +
                   number(plan.slices.pairs) + ", " + number(plan.slices.team) + ", " + number(plan.ranks) +
                   ">>";
  request.name = "cuda-resident slice_ranks, " + std::string(to_string(precision)) + ", any network, " +
                 number(plan.ranks) + " devices";
  request.most_local_bytes = kArgumentLocalBytes;
  request.argument_type = ours("SliceRankArguments");
  request.argument_bytes = sizeof(SliceRankArguments);
  return request;
}

int threads(const BlockPlan&, Precision) { return kBlockStepThreads; }
int threads(const PatchPlan&, Precision) { return kThreads; }
int threads(const SlicePlan& plan, Precision precision) { return slice_threads(plan, precision); }
int threads(const ColumnPlan&, Precision) { return kColumnThreads; }
int threads(const RankPlan&, Precision) { return kColumnThreads; }
int threads(const SlotPlan& plan, Precision) { return plan.threads; }
int threads(const SliceRankPlan&, Precision) { return kThreads; }

}  // namespace

PlanForm plan_form_of(const SlicePlan& plan, Precision precision) {
  // With four layers the published times are of kernels with an argument. Constants were at most 3 % faster there, in one cell
  // of two, and four of eleven such requests spill (docs/kernels/log/resident.md, version 50). At other depths constants take 3 to
  // 7 % off, as the loop over layers is unrolled. In fp32 it never is, and gains nothing by them; in tf32 with two pairs they spill from
  // three layers on.
  const bool is_no_faster = plan.layers == 4 || precision == Precision::kFp32;
  const bool spills = precision == Precision::kTf32 && plan.own == 1 && plan.pairs > 1;
  return is_no_faster || spills ? PlanForm::kArgument : PlanForm::kConstants;
}

jit::Request request_of(const AnyPlan& plan, Precision precision, PlanForm form) {
  return std::visit([&](const auto& one) { return request(one, precision, form); }, plan);
}

int threads_of(const AnyPlan& plan, Precision precision) {
  return std::visit([&](const auto& one) { return threads(one, precision); }, plan);
}

}  // namespace headroom::resident
