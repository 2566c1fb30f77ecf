#include "resident/patch_plan.h"

#include <algorithm>

#include "core/error.h"
#include "resident/parameter_places.h"

namespace headroom::resident {
namespace {

void require(bool fits, const std::string& what) {
  if (!fits) throw UnsupportedError("cuda-resident, a patch of every weight a thread block: " + what);
}

}  // namespace

PatchPlan make_patch_plan(const Workload& workload, Precision precision, const Limits& limits) {
  PatchPlan plan{};
  plan.form = Form::kGrid;
  plan.members = kPatchMembers;
  plan.batch = workload.batch_size;
  plan.classes = workload.classes();
  plan.exchanges = kPatchExchanges;
  require(precision == Precision::kFp16 || precision == Precision::kBf16,
          "in " + std::string(to_string(precision)) + ", not in fp16 or bf16");
  require(workload.layers() == kPatchLayers, std::to_string(workload.layers()) + " layers, not 4");
  require(plan.batch <= kGroupRows, "batch size " + std::to_string(plan.batch) + ", not up to 32");
  require(plan.classes <= kPatchClasses, std::to_string(plan.classes) + " classes, not up to 16");
  require(workload.inputs() <= kPatchColumns * kPatchInputs,
          std::to_string(workload.inputs()) + " inputs, not up to " +
              std::to_string(kPatchColumns * kPatchInputs));
  const int widest = *std::max_element(workload.model.widths.begin() + 1, workload.model.widths.end() - 1);
  require(widest <= kPatchWidth,
          "a hidden layer of " + std::to_string(widest) + ", not up to " + std::to_string(kPatchWidth));
  require(
      plan.members <= limits.sm_count,
      std::to_string(plan.members) + " thread blocks, the device holds " + std::to_string(limits.sm_count));
  require(PatchLayout::kBytes <= limits.shared_bytes, std::to_string(PatchLayout::kBytes) +
                                                          " bytes of shared memory; there are " +
                                                          std::to_string(limits.shared_bytes));
  std::copy(workload.model.widths.begin(), workload.model.widths.end(), plan.widths);
  plan.column_inputs = (workload.inputs() + kPatchColumns - 1) / kPatchColumns;
  plan.shared_bytes = PatchLayout::kBytes;
  plan.exchange_bytes = 2 * PatchExchange::kParityBytes + PatchExchange::kLastMasterBytes;
  plan.x_batch_bytes = std::int64_t{kPatchColumns} * PatchLayout::kInputTile;
  place_parameters(plan, kPatchLayers);
  return plan;
}

}  // namespace headroom::resident
