// The arithmetic of the plan. Shared memory is laid out in the order in which plan.h names it.
#include "resident/plan.h"

#include <algorithm>
#include <stdexcept>

#include "core/error.h"

namespace headroom::resident {
namespace {

template <class T>
constexpr T divide_up(T value, T by) {
  return (value + by - 1) / by;
}

/// A pitch of 4 more than a multiple of 32 values: both ways of walking the weights are free of bank conflicts.
std::int32_t pitch_of(int units) { return units * kUnitColumns + 4; }

class SharedLayout {
 public:
  std::int32_t take(std::int64_t bytes) {
    const std::int64_t begin = end_;
    end_ = divide_up<std::int64_t>(end_ + bytes, 32) * 32;
    return static_cast<std::int32_t>(begin);
  }
  std::int64_t end() const { return end_; }

 private:
  std::int64_t end_ = kArgumentsBytes;
};

int most_chunks(const Workload& workload) {
  int most = 0;
  for (int layer = 0; layer < workload.layers(); ++layer)
    most =
        std::max(most, divide_up(workload.model.widths[static_cast<std::size_t>(layer) + 1], kChunkColumns));
  return most;
}

void check_shape(const Workload& workload) {
  if (workload.layers() < 2 || workload.layers() > kMaxLayers)
    throw UnsupportedError("cuda-resident: " + std::to_string(workload.layers()) +
                           " layers; it trains 2 to " + std::to_string(kMaxLayers));
  if (workload.batch_size < 1 || workload.batch_size > kMaxBatch)
    throw UnsupportedError("cuda-resident: batch size " + std::to_string(workload.batch_size) +
                           "; it trains 1 to " + std::to_string(kMaxBatch));
}

}  // namespace

std::string_view to_string(Form form) { return form == Form::kCluster ? "cluster" : "grid"; }

std::vector<Form> forms_to_try(const Workload& workload) {
  if (most_chunks(workload) <= kMaxCluster) return {Form::kCluster, Form::kGrid};
  return {Form::kGrid};
}

Plan make_plan(const Workload& workload, Precision precision, Form form, const Limits& limits) {
  check_shape(workload);
  Plan plan{};
  plan.form = form;
  plan.layers = workload.layers();
  plan.batch = workload.batch_size;
  plan.groups = divide_up(plan.batch, kGroupRows);
  plan.classes = workload.classes();
  plan.element_bytes = precision == Precision::kFp16 || precision == Precision::kBf16 ? 2 : 4;
  plan.tile = tile_bytes(plan.element_bytes);
  plan.shared_tile = shared_tile_bytes(plan.element_bytes);

  const int most = most_chunks(workload);
  if (form == Form::kCluster) {
    plan.members = 1;
    while (plan.members < std::min(most, kMaxCluster)) plan.members *= 2;
  } else {
    const int per_member = divide_up(most, limits.sm_count);
    plan.members = divide_up(most, per_member);
  }

  SharedLayout shared;
  std::int64_t parameter = 0;
  for (int index = 0; index < plan.layers; ++index) {
    LayerPlan& layer = plan.layer[index];
    layer.in = workload.model.widths[static_cast<std::size_t>(index)];
    layer.out = workload.model.widths[static_cast<std::size_t>(index) + 1];
    layer.in_units = divide_up(layer.in, kUnitColumns);
    layer.out_units = divide_up(layer.out, kUnitColumns);
    layer.chunks = divide_up(layer.out, kChunkColumns);
    layer.per_member = divide_up(layer.chunks, plan.members);
    plan.max_tiles = std::max(plan.max_tiles, layer.per_member * plan.groups);
    layer.weight_begin = parameter;
    layer.bias_begin = parameter + std::int64_t{layer.in} * layer.out;
    parameter = layer.bias_begin + layer.out;

    layer.rows_pitch = pitch_of(layer.in_units);
    layer.rows_offset = shared.take(std::int64_t{4} * layer.per_member * kChunkColumns * layer.rows_pitch);
    if (index > 0) {
      layer.columns_pitch = pitch_of(layer.out_units);
      layer.columns_offset = shared.take(std::int64_t{4} * plan.layer[index - 1].per_member * kChunkColumns *
                                         layer.columns_pitch);
    }
    layer.bias_offset = shared.take(std::int64_t{4} * layer.per_member * kChunkColumns);
    const std::int64_t own_bytes = std::int64_t{layer.per_member} * plan.groups * plan.tile;
    for (int parity = 0; parity < 2; ++parity) {
      if (index + 1 < plan.layers) layer.hidden_offset[parity] = shared.take(own_bytes);
      layer.gradient_offset[parity] = shared.take(own_bytes);
    }
    layer.hidden_exchange = index + 1 < plan.layers ? index : -1;
    layer.gradient_exchange =
        index > 0 && index + 1 < plan.layers ? plan.layers + (plan.layers - 2 - index) : -1;
  }
  plan.logit_exchange = plan.layers - 1;
  plan.exchanges = 2 * plan.layers - 2;

  const LayerPlan& last = plan.layer[plan.layers - 1];
  for (int parity = 0; parity < 2; ++parity) {
    plan.dlogits_offset[parity] =
        shared.take(std::int64_t{last.out_units} * kUnitChunks * plan.groups * plan.shared_tile);
    plan.partial_offset[parity] = shared.take(std::int64_t{kWarps} * plan.max_tiles * kLogitTileBytes);
  }
  plan.row_loss_offset = shared.take(std::int64_t{4} * plan.groups * kGroupRows);
  plan.barrier_offset = form == Form::kCluster ? shared.take(8 * (2 * plan.exchanges + 1)) : -1;

  const auto place_exchange = [&](int index, const LayerPlan& layer, bool logits) {
    ExchangePlan& exchange = plan.exchange[index];
    const std::int64_t tile = logits ? kLogitTileBytes : plan.tile;
    exchange.chunks = layer.chunks;
    exchange.chunks_with_padding = layer.out_units * kUnitChunks;
    exchange.bytes_per_step = static_cast<std::int32_t>(layer.chunks * plan.groups * tile);
    const std::int64_t tiles = std::int64_t{exchange.chunks_with_padding} * plan.groups;
    if (form == Form::kCluster) {
      for (int stage = 0; stage < 2; ++stage)
        exchange.shared_offset[stage] = shared.take(tiles * (logits ? kLogitTileBytes : plan.shared_tile));
    } else {
      exchange.global_columns = logits ? 0 : tiles * tile;
      exchange.global_stage_bytes = logits ? tiles * tile : 2 * tiles * tile;
      exchange.global_offset = plan.exchange_bytes;
      plan.exchange_bytes += exchange.global_stage_bytes * stages(Form::kGrid);
    }
  };
  for (int index = 0; index < plan.layers; ++index) {
    const LayerPlan& layer = plan.layer[index];
    if (layer.hidden_exchange >= 0) place_exchange(layer.hidden_exchange, layer, false);
    if (layer.gradient_exchange >= 0) place_exchange(layer.gradient_exchange, layer, false);
  }
  place_exchange(plan.logit_exchange, last, true);

  if (shared.end() > limits.shared_bytes)
    throw UnsupportedError("cuda-resident: '" + workload.name + "' in " + std::string(to_string(precision)) +
                           " needs " + std::to_string(shared.end()) + " bytes of shared memory in each of " +
                           std::to_string(plan.members) + " thread blocks (" + std::string(to_string(form)) +
                           "); there are " + std::to_string(limits.shared_bytes));
  // The next batch's inputs are staged if there is room; else the step reads them from the L2 when it needs them.
  plan.x_batch_bytes =
      std::int64_t{plan.layer[0].in_units} * kUnitColumns * plan.groups * kGroupRows * plan.element_bytes;
  plan.x_rows_offset = plan.x_columns_offset = -1;
  for (std::int32_t* offset : {&plan.x_rows_offset, &plan.x_columns_offset})
    if (shared.end() + plan.x_batch_bytes <= limits.shared_bytes) *offset = shared.take(plan.x_batch_bytes);
  plan.shared_bytes = static_cast<std::int32_t>(std::min<std::int64_t>(shared.end(), limits.shared_bytes));
  return plan;
}

}  // namespace headroom::resident
