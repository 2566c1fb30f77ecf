// The arithmetic of the slice plan. Shared memory is laid out in the order in which slice_plan.h names it.
#include "resident/slice_plan.h"

#include <algorithm>
#include <stdexcept>

#include "core/error.h"
#include "resident/parameter_places.h"
#include "resident/slice_ranks.h"
#include "resident/slice_slots.h"

namespace headroom::resident {
namespace {

constexpr int divide_up(int value, int by) { return (value + by - 1) / by; }

void require(bool fits, const std::string& what) {
  if (!fits) throw UnsupportedError("cuda-resident, one slice a thread block: " + what);
}

/// One more than twice the last stage that anybody may still read when it is written again: with one exchange a step a
/// member may be two steps behind.
int stage_shift_of(int layers) { return layers == 2 ? 2 : 1; }

/// Clusters with two slices a member: their layout is the same for every network that fits.
void finish_whole_pair_plan(SlicePlan& plan, Precision precision, int widest, const Limits& limits) {
  require(precision == Precision::kFp16 || precision == Precision::kBf16,
          "clusters with two slices a thread block, in " + std::string(to_string(precision)));
  require(plan.layers == 4,
          std::to_string(plan.layers) + " layers, clusters with two slices a thread block have 4");
  require(widest <= WholePair::kColumns, "a hidden layer of " + std::to_string(widest) + ", not up to 256");
  plan.pairs = WholePair::kPairs;
  plan.members = WholePair::kMembers * plan.own;
  require(WholePair::kMembers * clusters(plan) <= limits.sm_count,
          std::to_string(WholePair::kMembers * clusters(plan)) + " thread blocks, the device holds " +
              std::to_string(limits.sm_count));
  require(WholePair::kSharedBytes <= limits.shared_bytes,
          "clusters with two slices a thread block need " + std::to_string(WholePair::kSharedBytes) +
              " bytes of shared memory; there are " + std::to_string(limits.shared_bytes));
  plan.input_pairs = divide_up(plan.widths[0], kPairColumns);
  plan.member_input_pairs = divide_up(plan.input_pairs, clusters(plan));
  require(plan.member_input_pairs <= WholePair::kInputPairs,
          std::to_string(plan.widths[0]) + " inputs, not up to 224 a cluster");
  plan.exchanges = 2 * plan.layers - 4;
  plan.tile = tile_bytes(2);
  plan.behind_tiles = -1;
  plan.x_batch_bytes = std::int64_t{2} * plan.input_pairs * plan.tile;
  plan.exchange_bytes = clusters(plan) > 1 ? WholePair::kExchangeBytes : 0;
  plan.shared_bytes = WholePair::kSharedBytes;
  place_parameters(plan, plan.layers);
}

/// Clusters that divide the rows of the batch with two slices a member: their layout is the same for every network that fits.
void finish_wide_rows_plan(SlicePlan& plan, int widest, const Limits& limits) {
  require(
      plan.layers == 4 && plan.team == WideRows::kClusters && widest <= WideRows::kSlices * kSliceColumns,
      "clusters that divide the rows with two slices a thread block are four, of four layers with up to 256 "
      "columns");
  plan.pairs = 1;
  plan.members = WideRows::kSlices;
  const int blocks = kMaxCluster * plan.team;
  require(blocks <= limits.sm_count,
          std::to_string(blocks) + " thread blocks, the device holds " + std::to_string(limits.sm_count));
  require(WideRows::kSharedBytes <= limits.shared_bytes, std::to_string(WideRows::kSharedBytes) +
                                                             " bytes of shared memory; there are " +
                                                             std::to_string(limits.shared_bytes));
  plan.input_pairs = divide_up(plan.widths[0], kPairColumns);
  plan.member_input_pairs = divide_up(plan.input_pairs, plan.team);
  plan.exchanges = WideRows::kExchanges;
  plan.tile = tile_bytes(4);
  plan.behind_tiles = -1;
  plan.x_batch_bytes = std::int64_t{2} * plan.input_pairs * plan.tile;
  plan.exchange_bytes = 2 * WideRows::kBoard;
  plan.shared_bytes = WideRows::kSharedBytes;
  place_parameters(plan, plan.layers);
}

/// Clusters that divide the rows of the batch: a slice a member, and room for all inputs, their rows only of the cluster's own.
void finish_whole_rows_plan(SlicePlan& plan, Precision precision, int widest, const Limits& limits) {
  require(precision == Precision::kTf32 && plan.layers == 4 && plan.team == WholeRows::kClusters &&
              widest <= kMaxCluster * kSliceColumns,
          "clusters that divide the rows are four, in tf32, of four layers with up to 128 columns");
  plan.pairs = 1;
  plan.members = kMaxCluster;
  require(plan.members * plan.team <= limits.sm_count, std::to_string(plan.members * plan.team) +
                                                           " thread blocks, the device holds " +
                                                           std::to_string(limits.sm_count));
  plan.input_pairs = divide_up(plan.widths[0], kPairColumns);
  plan.member_input_pairs = plan.input_pairs;
  plan.exchanges = 2 * plan.layers - 4;
  plan.tile = tile_bytes(4);
  plan.last_lanes = std::max(0, divide_up(plan.classes - kSliceColumns, 2));
  plan.first_offset = plan.gradient_offset = plan.dlogits_offset = plan.last_partial_offset = -1;
  plan.behind_tiles = -1;
  plan.x_batch_bytes = std::int64_t{2} * plan.input_pairs * plan.tile;
  plan.exchange_bytes = 2 * WholeRows::kBoard;
  place_parameters(plan, plan.layers);

  std::int32_t end = 0;
  const auto take = [&](std::int32_t bytes) {
    const std::int32_t begin = end;
    end = divide_up(end + bytes, 128) * 128;
    return begin;
  };
  const int matrix = kWarps * kMasterPair, between = plan.layers - 2;
  plan.rows_offset = take(between * matrix);
  plan.columns_offset = take(between * matrix);
  plan.last_offset[0] = take(matrix);
  plan.last_offset[1] = take(matrix * plan.last_lanes / 4);
  plan.bias_offset = take(4 * (plan.layers - 1) * kSliceColumns);
  plan.last_bias_offset = take(4 * kMostClasses);
  plan.hidden_offset = take(WholeRows::kFragments);
  plan.partial_offset = take(kWarps * WholeRows::kTile + WholeRows::kParts);
  plan.row_loss_offset = take(2 * 8 * kGroupRows);
  plan.staging_barrier_offset = take(16);
  plan.team_barrier_offset = take(8 * WholeRows::kSignals);
  plan.team_offset = take(4 * kMaxCluster);
  plan.barrier_offset = take(8 * plan.exchanges);
  plan.exchange_offset = take(plan.exchanges * WholeRows::kExchange);
  plan.x_rows_offset = take(plan.input_pairs * WholeRows::kInputPair);
  plan.x_columns_offset = take(2 * plan.input_pairs * plan.tile);
  plan.shared_bytes = end;
  require(end <= limits.shared_bytes,
          std::to_string(end) + " bytes of shared memory; there are " + std::to_string(limits.shared_bytes));
}

/// may_be_ahead: whether the first layer's sums may be made a step ahead. slots: of the optimizer, for the kernel of slice_step.cuh.
/// has_peers: whether it is a rank's, of slice_ranks.cuh.
SlicePlan lay_out(const Workload& workload, Precision precision, Form form, const Limits& limits, int team,
                  int own, bool may_be_ahead, int gram_teams, int slots = 0, bool has_peers = false) {
  require(gram_teams == 0 || (form == Form::kGrid && own == 1),
          "teams that make x x' are for a first layer a step ahead");
  SlicePlan plan{};
  plan.form = form;
  plan.team = team;
  plan.own = own;
  plan.layers = workload.layers();
  plan.batch = workload.batch_size;
  plan.classes = workload.classes();
  require(plan.layers >= 2 && plan.layers <= kMaxLayers, std::to_string(plan.layers) + " layers, not 2 to 8");
  require(plan.batch <= kGroupRows, "batch size " + std::to_string(plan.batch) + ", not up to 32");
  require(plan.classes <= kMostClasses, std::to_string(plan.classes) + " classes, not up to 16");
  require(workload.inputs() <= 8 * kInputPairs * kPairColumns,
          std::to_string(workload.inputs()) + " inputs, not up to 896");
  std::copy(workload.model.widths.begin(), workload.model.widths.end(), plan.widths);

  const int widest = *std::max_element(workload.model.widths.begin() + 1, workload.model.widths.end() - 1);
  if (in_pair_clusters(form, own) && precision == Precision::kTf32) {
    finish_wide_rows_plan(plan, widest, limits);
    return plan;
  }
  if (in_pair_clusters(form, own)) {
    finish_whole_pair_plan(plan, precision, widest, limits);
    return plan;
  }
  if (form == Form::kCluster && team > 1) {
    finish_whole_rows_plan(plan, precision, widest, limits);
    return plan;
  }
  const bool is_plain = slots == 0 && !has_peers;  // of a kernel that may divide a step in other ways
  const bool rows = is_plain && form == Form::kGrid && divides_rows(precision, team, own);
  require(!rows || plan.layers == 4,
          std::to_string(plan.layers) + " layers, thread blocks that divide rows have 4");
  plan.pairs = own == 2 ? 4 : rows ? kRowsPairs : 1;
  while (plan.pairs * kWarps * team * kPairColumns < widest) plan.pairs *= 2;
  const bool sixteen = precision == Precision::kFp16 || precision == Precision::kBf16;
  require(sixteen || team > 1 || has_peers || (form == Form::kCluster && precision == Precision::kTf32),
          std::string(to_string(precision)) + " takes teams of thread blocks");
  require(precision != Precision::kFp32 || own == 1, "two slices a thread block, in fp32 one");
  const int most = has_peers ? most_rank_pairs(precision) * kWarps * team * kPairColumns
                   : rows    ? kRowsPairs * kWarps * team * kPairColumns
                             : widest_of_slices(precision, team, own);
  require(widest <= most, "a hidden layer of " + std::to_string(widest) + " in " +
                              std::string(to_string(precision)) + ", not up to " + std::to_string(most));
  // At least what one warp reads: a warp beyond the last pair reads the last ones, against weights of zero.
  const int slices = std::max(divide_up(widest, kSliceColumns), 2 * plan.pairs);
  plan.members = divide_up(slices, 2) * 2;
  if (form == Form::kCluster) {
    plan.members = 2;
    while (plan.members < slices) plan.members *= 2;
    require(plan.members <= kMaxCluster, std::to_string(plan.members) + " thread blocks, a cluster holds 16");
    if (sixteen && plan.layers == 4) plan.members = kMaxCluster;  // with whole sums
  }
  // Of x x' so many thread blocks make a part each, if no teams more make it.
  const bool ahead = may_be_ahead && sums_ahead(precision, plan.layers, team, plan.pairs) &&
                     (gram_teams > 0 || !is_narrow_ahead(team, plan.members));
  require(ahead || team != 3, "teams of three have the first layer a step ahead or nothing");
  require(ahead || gram_teams == 0, "no first layer a step ahead, and so no teams that make x x'");
  if (ahead && gram_teams == 0) plan.members = std::max(plan.members, divide_up(kGramParts, 2 * team) * 2);
  if (rows) plan.members = kRowsMembers;
  const int thread_blocks = (plan.members / own + gram_teams) * team;
  require(
      thread_blocks <= limits.sm_count,
      std::to_string(thread_blocks) + " thread blocks, the device holds " + std::to_string(limits.sm_count));

  plan.input_pairs = divide_up(workload.inputs(), kPairColumns);
  plan.member_input_pairs = divide_up(plan.input_pairs, team);
  plan.exchanges = has_peers ? rank_exchanges(plan.layers) : plan.layers == 2 ? 1 : 2 * plan.layers - 4;
  plan.stage_shift = has_peers ? kRankStageShift : stage_shift_of(plan.layers);
  const int stages = 1 << plan.stage_shift;
  const bool wide_elements = precision == Precision::kFp32 || precision == Precision::kTf32;
  plan.tile = tile_bytes(wide_elements ? 4 : 2);
  const bool packed = form == Form::kGrid && packs_tiles(precision, plan.layers, team, own);
  const std::int64_t own_tile =
      std::int64_t{plan.tile} * (keeps_columns(precision, plan.pairs, team) ? 2 : 1);
  const std::int64_t kept = std::int64_t{kept_layers(ahead)} * kWarps * 2 * plan.pairs * plan.tile;
  plan.last_lanes = std::max(0, divide_up(plan.classes - kSliceColumns, 2));

  place_parameters(plan, plan.layers);

  std::int64_t end = 0;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t begin = end;
    end = (end + bytes + 127) / 128 * 128;
    return static_cast<std::int32_t>(begin);
  };
  const std::int64_t matrix = std::int64_t{kWarps} * plan.pairs * kMasterPair;
  const int between = plan.layers - 2, hidden = plan.layers - 1;
  const int first_pairs = ahead      ? kAheadInputWarps * divide_up(2 * kInputPairs, team)
                          : own == 1 ? kWarps * divide_up(kInputPairs, team)
                                     : own * plan.member_input_pairs;
  plan.first_offset = precision == Precision::kFp32 ? take(std::int64_t{first_pairs} * kMasterPair) : -1;
  plan.rows_offset = take(between * own * matrix);
  plan.columns_offset = take(between * own * matrix);
  plan.last_offset[0] = take(matrix);
  plan.last_offset[1] = take(matrix * plan.last_lanes / 4);
  plan.bias_offset = take(std::int64_t{4} * hidden * own * kSliceColumns);
  plan.last_bias_offset = take(std::int64_t{4} * kMostClasses);
  plan.hidden_offset = take(rows ? kRowsWeightBytes + (3 + kRowsMembers / 2) * std::int64_t{plan.tile}
                            : is_plain && sums_whole(precision, plan)
                                ? kFragmentBytes
                                : std::int64_t{own == 1 ? 2 * hidden : hidden + 1} * own * own_tile);
  plan.gradient_offset = take(std::int64_t{hidden} * own * own_tile);
  plan.dlogits_offset = take(2 * own_tile + kept);
  plan.partial_offset = take(std::int64_t{2} * own * kWarps * kPartialTile);
  plan.last_partial_offset = own == 1 ? take(kWarps * kPartialTile * plan.last_lanes / 4) : -1;
  plan.row_loss_offset = take(std::int64_t{8} * kGroupRows);
  plan.staging_barrier_offset = take(16);
  plan.team_barrier_offset = take(kTeamBarrierBytes + 4 * (ahead ? kMostAheadWarps : kMostWarps));
  plan.team_offset = take(std::int64_t{2} * kTeamWarps * (team - 1) * 512);
  plan.barrier_offset = plan.exchange_offset = -1;
  if (ahead) plan.exchange_offset = take(kAheadBytes);
  if (rows) plan.barrier_offset = take(8 * kRowsBarriers + 4 * kRowsWarps);
  plan.behind_tiles = -1;
  if (form == Form::kCluster) {
    plan.barrier_offset =
        take(std::int64_t{8} * plan.exchanges * stages * (is_plain && sums_whole(precision, plan) ? 2 : 1));
    plan.exchange_offset = take(std::int64_t{plan.exchanges} * stages * plan.members * plan.tile);
  } else {
    plan.exchange_bytes =
        plan.exchanges * stages *
        (packed ? std::int64_t{2} * plan.members * kPackedTile
                : slot_bytes(plan.members, plan.tile,
                             publishes_columns(precision, plan.pairs, team) ||
                                 (form == Form::kGrid && turns_tiles(precision, plan.layers, team, own))));
    if (ahead) {
      plan.behind_tiles = plan.exchange_bytes;
      plan.exchange_bytes += 2 * kGramBytes + (gram_teams > 0 ? plan.members * kTakenWords * 4 : 0);
    }
  }
  const std::int64_t slot_bytes =
      std::int64_t{slots} * (masters_end(plan) + first_slot_bytes(precision, team));
  require(end + slot_bytes <= limits.shared_bytes,
          "'" + workload.name + "' in " + std::string(to_string(precision)) + " needs " +
              std::to_string(end + slot_bytes) + " bytes of shared memory (" + std::string(to_string(form)) +
              "); there are " + std::to_string(limits.shared_bytes));
  // The next batch's inputs are staged if there is room; else the step reads them from the L2 when it needs them, or, packed,
  // ahead of that.
  plan.x_batch_bytes = std::int64_t{2} * plan.input_pairs * (packed ? kPackedTile : plan.tile);
  plan.x_rows_offset = plan.x_columns_offset = -1;
  const std::int64_t staged_bytes = std::int64_t{2} * plan.member_input_pairs * plan.tile;
  for (std::int32_t* offset : {&plan.x_rows_offset, &plan.x_columns_offset})
    if (!packed && !(has_peers && offset == &plan.x_columns_offset) &&
        end + slot_bytes + staged_bytes <= limits.shared_bytes)
      *offset = take(staged_bytes);
  require(!ahead || plan.x_columns_offset >= 0, "no room for two batches of inputs");
  plan.shared_bytes = static_cast<std::int32_t>(end + slot_bytes);
  return plan;
}

bool in_sixteen_bits(Precision precision) {
  return precision == Precision::kFp16 || precision == Precision::kBf16;
}

/// Of the plain slice kernel, and of the first layer a step ahead: four warps serve a team, and four more have what is ahead.
int plain_threads(const SlicePlan& plan, Precision precision) {
  const bool serves =
      plan.team > 1 && !in_sixteen_bits(precision) && plan.pairs <= (precision == Precision::kFp32 ? 1 : 2);
  return kThreads + (serves ? 128 : 0) + (sums_ahead(plan) && plan.team < 4 ? 32 * kAheadInputWarps : 0);
}

}  // namespace

bool has_slice_kernel(const SlicePlan& plan, Precision precision) {
  const bool sixteen = in_sixteen_bits(precision);
  if (in_pair_clusters(plan) && sixteen) return plan.team == 1 || plan.team == WholePair::kMostClusters;
  if (plan.form == Form::kCluster) {
    if (plan.team == 1) return plan.own == 1 && precision != Precision::kFp32;
    return precision == Precision::kTf32 && sums_whole(precision, plan);
  }
  if (plan.own == 2) return plan.team == 2 && precision != Precision::kFp32;
  switch (plan.team) {
    case 1:
      return sixteen;
    case 2:
      return !sixteen || plan.layers == 4;  // which divide rows
    case 3:
      return sums_ahead(plan);
    default:
      return !sixteen && (ahead_slices(plan) != 1 || gram_teams(plan) > 0);
  }
}

int slice_threads(const SlicePlan& plan, Precision precision) {
  if (!sums_whole(precision, plan)) return plain_threads(plan, precision);
  // Warps of the chain, of updates, and one for what is small.
  const bool is_whole_cluster = in_sixteen_bits(precision) && plan.form == Form::kCluster && plan.own == 1;
  return kThreads + 32 * (is_whole_cluster ? 3 : 8);
}

std::vector<Sharing> slice_sharings(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return {{4, 1}, {3, 1}, {2, 1}};
    case Precision::kTf32:
      return {{4, 1}, {2, 1}, {2, 2}};
    case Precision::kFp16:
    case Precision::kBf16:
      return {{2, 2}, {2, 1}, {1, 1}};
  }
  throw std::logic_error("slice_sharings: not a Precision");
}

SlicePlan make_slice_plan(const Workload& workload, Precision precision, Form form, const Limits& limits,
                          int team, int own, int gram_teams) {
  if (gram_teams > 0) return lay_out(workload, precision, form, limits, team, own, true, gram_teams);
  if (form == Form::kGrid && own == 1) try {
      return lay_out(workload, precision, form, limits, team, own, true, 0);
    } catch (const UnsupportedError&) {  // no room for what is ahead, or for this network
    }
  return lay_out(workload, precision, form, limits, team, own, false, 0);
}

SlotPlan make_slot_plan(const Workload& workload, Precision precision, Form form, const Limits& limits,
                        int team) {
  require(workload.model.activation == Activation::kRelu,
          "activation " + std::string(to_string(workload.model.activation)) + ", there is relu");
  require(workload.loss == Loss::kCrossEntropy,
          "loss " + std::string(to_string(workload.loss)) + ", there is cross-entropy");
  SlotPlan plan{};
  plan.slots = workload.optimizer.slots();
  require(plan.slots > 0, "an optimizer without slots has other kernels");
  plan.slices = lay_out(workload, precision, form, limits, team, 1, false, 0, plan.slots);
  plan.threads = plain_threads(plan.slices, precision);
  return plan;
}

SliceRankPlan make_slice_rank_plan(const Workload& workload, Precision precision, const Limits& limits,
                                   int team) {
  const std::string beyond = beyond_plain_training(workload);
  require(beyond.empty(), beyond + " on several devices");
  require(precision != Precision::kTf32, "tf32 on several devices");
  const int ranks = workload.devices;
  require(ranks == 2 || ranks == 4 || ranks == kMostRanks,
          std::to_string(ranks) + " devices; of several there may be 2, 4 or " + std::to_string(kMostRanks));
  Limits without_tiles = limits;
  const int tile = tile_bytes(precision == Precision::kFp32 ? 4 : 2),
            tiles = (ranks - 1) * peer_tiles(workload.layers()) * tile;
  without_tiles.shared_bytes -= tiles;
  SliceRankPlan plan{.slices = lay_out(workload.of_a_rank(), precision, Form::kGrid, without_tiles, team, 1,
                                       false, 0, 0, true),
                     .ranks = ranks,
                     .peer_tiles_offset = 0};
  plan.peer_tiles_offset = plan.slices.shared_bytes;
  plan.slices.shared_bytes += tiles;
  return plan;
}

}  // namespace headroom::resident
