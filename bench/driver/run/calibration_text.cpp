#include "driver/run/calibration_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "core/error.h"
#include "driver/plan/backends.h"
#include "driver/run/device_use.h"
#include "driver/run/offers.h"
#include "driver/run/progress.h"
#include "driver/run/worker_pool.h"
#include "driver/system/device_lock.h"
#include "driver/system/left_out.h"
#include "driver/system/scratch.h"
#include "driver/system/table.h"
#include "driver/system/units.h"

namespace headroom {

std::string calibration_text(const CalibrateOptions& options, std::size_t width) {
  RunOptions asked;
  asked.device = options.device;
  asked.device_given = true;
  asked.wait = options.wait;
  asked.share_device = options.share_device;
  const int device = choose_device(asked);
  const Installation installation = find_installation();
  const Scratch logs(0);
  Progress progress;
  if (const std::string text = left_out_text(); !text.empty()) progress.line(text);
  const std::vector<WorkerProgram> programs = worker_programs(installation, options.workers);
  WorkerPool pool(programs, device, {}, logs.folder());
  greet_quick_workers(programs, pool);  // those of --worker among them
  const std::optional<DeviceInfo> found = pool.device();
  if (!found) throw InputError("calibrate: no CUDA device was found; there is nothing to measure");
  DeviceLock lock;
  lock_device(asked, found, lock, progress);
  progress.status(fmt::format("calibrating {}", found->name), true);
  const Calibration calibration =
      pool.calibrate({}, [&](const std::string& problem) { progress.line(problem); });
  if (calibration.empty()) throw std::runtime_error("calibrate: no worker measured anything");

  if (options.json) {
    nlohmann::ordered_json rates = nlohmann::ordered_json::object();
    for (const auto& [name, rate] : calibration)
      rates[name] = {{"value", rate.value}, {"unit", rate.unit}, {"how", rate.how}};
    return nlohmann::ordered_json{{"device", found->name}, {"calibration", rates}}.dump(
               2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
           "\n";
  }
  std::vector<Table::Row> rows;
  for (const auto& [name, rate] : calibration)
    rows.push_back({name, rate_text(rate.value, rate.unit), rate.how});
  return wrapped(fmt::format("{}\n", found->name) + columns_text(rows, 2, {1}), width);
}

}  // namespace headroom
