#include "resident/column_plan.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "resident/column_peers.h"
#include "resident/parameter_places.h"

namespace headroom::resident {
namespace {

constexpr int divide_up(int value, int by) { return (value + by - 1) / by; }

void require(bool fits, const std::string& what) {
  if (!fits) throw UnsupportedError("cuda-resident, columns: " + what);
}

/// Of masters that are not split a thread has registers for so many matrices of 256 columns; more would spill.
constexpr int kRegisterMasters = 3, kRankRegisterMasters = 2;

}  // namespace

int column_shared_bytes(const ColumnShape& shape, bool split) {
  const int own_tile = shape.rows() * kColumnOwn * 2, pair_bytes = shape.rows() * 16 * 2;
  const int tiles =
      shape.lower_buffers() + shape.last_buffers() + shape.last_sum_buffers() + shape.gradient_buffers();
  const int masters = split ? 0 : shape.hidden - shape.register_masters;
  const int barriers = (shape.exchanges() + (shape.hidden == 1 ? 1 : 0)) * shape.groups() + shape.hidden - 1 +
                       2 + 2 * shape.hidden + 2;
  const int bytes =
      tiles * shape.tiles() + (2 * shape.hidden - 1 + 2 * masters) * shape.matrix() +
      shape.cluster_pairs() * (kColumnOwn * 16 * 2 + (shape.stages_columns() ? 2 : 1) * pair_bytes) +
      ((shape.hidden == 1 ? 2 : shape.hidden + 2) + shape.own_sum_tiles()) * own_tile +
      (1 + shape.slots) * (shape.hidden + 1) * kColumnOwn * 4 + 16 + shape.rows() * 8 + 8 * barriers +
      4 * kColumnGroups + shape.shared_slot_bytes();
  return divide_up(bytes, 16) * 16;
}

ColumnPlan make_column_plan(const Workload& workload, Precision precision, const Limits& limits) {
  const bool split = precision == Precision::kBf16;
  require(split || precision == Precision::kFp16,
          std::string(to_string(precision)) + ", there are fp16 and bf16");
  const int layers = workload.layers();
  require(layers >= 2 && layers <= kMaxLayers, std::to_string(layers) + " layers, not 2 to 8");
  require(workload.batch_size <= kMostColumnRows, "batch size " + std::to_string(workload.batch_size) +
                                                      ", not up to " + std::to_string(kMostColumnRows));
  require(workload.classes() <= kColumnClasses,
          std::to_string(workload.classes()) + " outputs, not up to 16");
  const int widest = *std::max_element(workload.model.widths.begin() + 1, workload.model.widths.end() - 1);
  require(widest <= kMaxCluster * kColumnOwn,
          "a hidden layer of " + std::to_string(widest) + ", not up to 256");

  ColumnPlan plan{};
  ColumnShape& shape = plan.shape;
  shape.hidden = layers - 1;
  shape.members = widest <= 8 * kColumnOwn ? 8 : 16;
  shape.input_pairs = divide_up(workload.inputs(), 16);
  shape.slots = workload.optimizer.slots();
  shape.halves = divide_up(workload.batch_size, kGroupRows);
  shape.clusters = shape.input_pairs <= kMostColumnPairs ? 1 : kMostColumnClusters;
  // Half of the first layer's updates, which a step waits for.
  if (shape.clusters > 1 && shape.members == 8 && shape.slots > 0 &&
      8 * kSlotColumnClusters <= limits.sm_count)
    shape.clusters = kSlotColumnClusters;
  require(shape.input_pairs <= kMostColumnClusters * kMostColumnPairs,
          std::to_string(workload.inputs()) + " inputs, not up to 896");
  require(shape.members * shape.clusters <= limits.sm_count, std::to_string(shape.members * shape.clusters) +
                                                                 " thread blocks, the device holds " +
                                                                 std::to_string(limits.sm_count));
  shape.register_masters =
      split || shape.members == 8 ? shape.hidden : std::min(shape.hidden, kRegisterMasters);
  shape.activation = static_cast<int>(workload.model.activation);
  shape.loss = static_cast<int>(workload.loss);
  plan.shared_bytes = column_shared_bytes(shape, split);
  while (shape.slots > 0 && plan.shared_bytes > limits.shared_bytes && shape.memory_slots <= shape.hidden) {
    ++shape.memory_slots;
    plan.shared_bytes = column_shared_bytes(shape, split);
  }
  require(plan.shared_bytes <= limits.shared_bytes,
          "'" + workload.name + "' in " + std::string(to_string(precision)) + " needs " +
              std::to_string(plan.shared_bytes) + " bytes of shared memory; there are " +
              std::to_string(limits.shared_bytes));

  plan.form = Form::kCluster;
  plan.batch = workload.batch_size;
  plan.classes = workload.classes();
  std::copy(workload.model.widths.begin(), workload.model.widths.end(), plan.widths);
  plan.exchanges = shape.exchanges();
  plan.exchange_bytes =
      shape.clusters > 1 ? std::int64_t{2} * shape.clusters * kMaxCluster * shape.groups() * 512 : 0;
  plan.slot_bytes = std::int64_t{shape.members} * shape.clusters * shape.memory_slot_bytes();
  plan.x_batch_bytes = std::int64_t{shape.input_pairs} * shape.rows() * 16 * 2;
  place_parameters(plan, layers);
  return plan;
}

RankPlan make_rank_plan(const Workload& workload, Precision precision, const Limits& limits) {
  const int ranks = workload.devices;
  require(ranks == 2 || ranks == 4 || ranks == kMostRanks,
          std::to_string(ranks) + " devices; of several there may be 2, 4 or " + std::to_string(kMostRanks));
  require(workload.batch_size <= kGroupRows, "batch size " + std::to_string(workload.batch_size) +
                                                 " on each of several devices, not up to " +
                                                 std::to_string(kGroupRows));
  Limits without_words = limits;
  without_words.shared_bytes -= kRankWordsBytes;
  RankPlan plan{.columns = make_column_plan(workload.of_a_rank(), precision, without_words),
                .ranks = ranks,
                .inbox_bytes = 0};
  // Of 256 columns an update has its peers' operands in registers besides; with so few masters there nothing spills.
  ColumnShape lean = plan.columns.shape;
  lean.register_masters = std::min(lean.register_masters, kRankRegisterMasters);
  const bool split = precision == Precision::kBf16;
  if (const int bytes = column_shared_bytes(lean, split);
      !split && lean.members == kMaxCluster && bytes <= without_words.shared_bytes) {
    plan.columns.shape = lean;
    plan.columns.shared_bytes = bytes;
  }
  plan.columns.shared_bytes += kRankWordsBytes;
  plan.inbox_bytes = (ranks - 1) * peer_bytes(plan.columns.shape);
  return plan;
}

}  // namespace headroom::resident
