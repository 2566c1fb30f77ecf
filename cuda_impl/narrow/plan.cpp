#include "narrow/plan.h"

#include <algorithm>

namespace headroom::narrow {

Plan plan_of(const Workload& workload, Precision precision) {
  Plan plan{};
  plan.layers = workload.layers();
  std::copy(workload.model.widths.begin(), workload.model.widths.end(), plan.widths);
  plan.batch = workload.batch_size;
  plan.precision = static_cast<int>(precision);
  plan.activation = static_cast<int>(workload.model.activation);
  plan.loss = static_cast<int>(workload.loss);
  plan.slots = workload.optimizer.slots();
  return plan;
}

std::optional<std::string> refusal(const Workload& workload, Precision precision, const Limits& limits) {
  const auto of = [&](const std::string& what) { return "'" + workload.name + "' has " + what; };
  if (workload.layers() > kMaxLayers)
    return of(std::to_string(workload.layers()) + " layers; up to " + std::to_string(kMaxLayers) +
              " are trained");
  if (const int widest = *std::ranges::max_element(workload.model.widths); widest > kMaxWidth)
    return of("a width of " + std::to_string(widest) + "; up to " + std::to_string(kMaxWidth) +
              " are trained");
  Plan plan = plan_of(workload, precision);
  if (make_plan(plan, limits).blocks > 0) return std::nullopt;
  plan.strips = plan.tall = plan.sums_in_memory = plan.row_parts = plan.sum_tall = 1, plan.team = 8;
  plan.blocks = smaller(tiles(plan), limits.sm_count);
  return of(std::to_string(shared_bytes(plan)) +
            " bytes of weights and of activations of 16 rows; a thread block has " +
            std::to_string(limits.shared_bytes));
}

}  // namespace headroom::narrow
