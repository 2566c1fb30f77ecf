#include "resident/block_plan.h"

#include <algorithm>

#include "core/error.h"
#include "resident/parameter_places.h"

namespace headroom::resident {
namespace {

constexpr int divide_up(int value, int by) { return (value + by - 1) / by; }

void require(bool fits, const std::string& what) {
  if (!fits) throw UnsupportedError("cuda-resident, blocks of weights: " + what);
}

}  // namespace

BlockPlan make_block_plan(const Workload& workload, Precision precision, const Limits& limits) {
  require(precision == Precision::kFp32, "no kernel in " + std::string(to_string(precision)));
  require(workload.layers() == kBlockLayers, std::to_string(workload.layers()) + " layers, not 4");
  require(workload.batch_size <= kGroupRows,
          "batch size " + std::to_string(workload.batch_size) + ", not up to 32");
  require(workload.classes() <= kBlockClasses, std::to_string(workload.classes()) + " classes, not up to 16");
  require(workload.inputs() <= kBlockRanks * kBlockInputs,
          std::to_string(workload.inputs()) + " inputs, not up to 896");
  const int widest = *std::max_element(workload.model.widths.begin() + 1, workload.model.widths.end() - 1);
  require(widest <= kBlockWidth, "a hidden layer of " + std::to_string(widest) + ", not up to 1024");

  BlockPlan plan{};
  plan.form = Form::kGrid;
  plan.blocks = divide_up(widest, kBlockColumns);
  plan.clusters = divide_up(plan.blocks * kBlockColumns, kBlockOutputs);
  plan.members = plan.clusters * kBlockRanks;
  plan.batch = workload.batch_size;
  plan.classes = workload.classes();
  plan.exchanges = kBlockExchanges;
  plan.rank_inputs = divide_up(workload.inputs(), kBlockRanks);
  std::copy(workload.model.widths.begin(), workload.model.widths.end(), plan.widths);
  place_parameters(plan, kBlockLayers);
  plan.shared_bytes = block_layout().bytes;
  require(plan.shared_bytes <= limits.shared_bytes, std::to_string(plan.shared_bytes) +
                                                        " bytes of shared memory, there are " +
                                                        std::to_string(limits.shared_bytes));
  require(
      plan.members <= limits.sm_count,
      std::to_string(plan.members) + " thread blocks, the device holds " + std::to_string(limits.sm_count));
  plan.exchange_bytes = 2 * (std::int64_t{kBlockHidden} * block_tile_bytes(kBlockWidth) +
                             std::int64_t{kBlockLayers - 2} * kBlockGradientBytes);
  plan.x_batch_bytes = std::int64_t{kBlockRanks} * kBlockInputTile;
  return plan;
}

}  // namespace headroom::resident
