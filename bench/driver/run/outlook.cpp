#include "driver/run/outlook.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "core/error.h"
#include "driver/run/capacity.h"
#include "driver/run/resume.h"
#include "driver/system/units.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

// Setting up a backend that compiles, with nothing of it in the cache.
constexpr double kCompileSeconds = 40;

}  // namespace

std::int64_t least_train_bytes(const std::optional<DeviceInfo>& device) {
  return device && device->l2_bytes > 0 ? 4 * device->l2_bytes : kLeastTrainBytes;
}

std::int64_t temporary_bytes(const Plan& plan) {
  const auto seeds = static_cast<std::int64_t>(plan.loss_steps > 0 ? plan.loss_seeds.size() : 0);
  std::int64_t most = 0;
  for (const PlannedWorkload& planned : plan.workloads)
    most = std::max(most, need_of(planned.workload, kLeastTrainBytes, false, seeds).scratch);
  return most;
}

void refuse_too_large(const RunContext& context, const Results& results) {
  const auto seeds =
      static_cast<std::int64_t>(context.plan.loss_steps > 0 ? context.plan.loss_seeds.size() : 0);
  const Room room = room_here();
  for (const PlannedWorkload& planned : context.plan.workloads) {
    const bool runs = std::any_of(planned.groups.begin(), planned.groups.end(), [&](const Group& group) {
      return is_due(context.options, results, planned, group) &&
             std::any_of(group.backends.begin(), group.backends.end(), [&](const std::string& backend) {
               return runs_here(context, group, backend, planned.workload.devices);
             });
    });
    if (!runs) continue;
    refuse_too_large(
        planned.workload,
        need_of(planned.workload, context.least_train_bytes, context.gpu_oracle != nullptr, seeds), room);
  }
}

bool runs_here(const RunContext& context, const Group& group, const std::string& backend, int devices) {
  const auto& limited = context.plan.precisions_without_gpu;
  const bool left_out = !context.has_device && limited &&
                        std::find(limited->begin(), limited->end(), group.precision) == limited->end();
  return !left_out &&
         context.pool.availability(row_of(context.table, backend), group.precision, devices).state ==
             Availability::State::kAvailable;
}

double estimated_seconds(const RunContext& context, const PlannedWorkload& planned, const Group& group) {
  // Rough rates of what is slowest; the estimate is scaled by what the first groups really take.
  const double cores = static_cast<double>(std::max(1u, std::thread::hardware_concurrency()));
  const double oracle_rate = 1e10 * cores;
  const double flops = planned.workload.flops_per_step();
  const double state_bytes =
      static_cast<double>(planned.workload.parameter_count()) * 4 * (1 + planned.workload.optimizer.slots());
  double seconds = 0;
  int running = 0;
  for (const std::string& backend : group.backends) {
    if (!runs_here(context, group, backend, planned.workload.devices)) continue;
    const BackendRow& row = row_of(context.table, backend);
    ++running;
    double step = context.has_device ? 1e-3 + flops / 3e13 + 2 * state_bytes / 2e12
                                     : 5e-4 + flops / (2e10 * cores) + 2 * state_bytes / 1e10;
    if (row.family == Family::kReference) step = oracle_operations(planned.workload) / oracle_rate;
    if (row.compiles && context.options.compile_processes == 0) seconds += kCompileSeconds;
    const double block = std::max(1.1 * context.options.block_seconds, 50 * step) + std::max(5e-3, 10 * step);
    const double losses =
        static_cast<double>(context.plan.loss_steps) * static_cast<double>(context.plan.loss_seeds.size());
    if (!context.monitors_of(planned.workload).empty()) seconds += 1.1 * context.options.energy_seconds;
    seconds += 1 + 60 * step + state_bytes * 9 * 6 / 1e9 + context.options.blocks * block + losses * step;
  }
  if (running == 0) return 0;
  const bool gpu_oracle = context.gpu_oracle != nullptr && wants_gpu_oracle(planned.workload);
  return seconds + reference_operations(planned.workload, gpu_oracle) / (gpu_oracle ? 4e12 : oracle_rate) +
         state_bytes * 20 / 1e9;
}

Outlook look_ahead(const RunContext& context, const Results& results) {
  Outlook outlook;
  for (const PlannedWorkload& planned : context.plan.workloads) {
    for (const Group& group : planned.groups) {
      if (!is_due(context.options, results, planned, group)) continue;
      outlook.seconds += estimated_seconds(context, planned, group);
      for (const std::string& backend : group.backends)
        ++(runs_here(context, group, backend, planned.workload.devices) ? outlook.running : outlook.skipped);
    }
  }
  return outlook;
}

void refuse_too_long(const RunOptions& options, const Outlook& outlook) {
  constexpr double kDay = 24 * 3600;
  if (options.yes || outlook.seconds <= kDay) return;
  throw InputError(
      fmt::format("{} record{} would take about {}, more than a day: start it with --yes, or choose less",
                  outlook.running, outlook.running == 1 ? "" : "s", duration_text(outlook.seconds)));
}

}  // namespace headroom
