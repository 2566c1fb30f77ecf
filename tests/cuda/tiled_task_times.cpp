// Prints what cuda-tiled's multiprocessors do when, and the step's time with each tiling, without and with weight gradients in parts:
//   tiled_task_times PRECISION [--portable] [--tasks] [--chosen] [--trace FILE] WORKLOAD...
// --portable: with the kernel for every GPU. --tasks: a line for each form and layer of the step's tasks, in microseconds: when the first and the last had their first slab, when
// the last was stored, and the means of products and of what follows them. --chosen: only the tiling that would be taken. --trace: the
// times of all tasks of a step, as JSON. A star is beside what would be taken.
//
// For work on the kernel only; what is reported comes from `headroom run`.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/workload.h"
#include "data/dataset.h"
#include "device/device.h"
#include "kept_tiled_trainer.h"
#include "step_time.h"
#include "tiled/schedule.h"

namespace headroom {
namespace {

struct Times {
  int count = 0;
  double first = 1e9, last = 0, end = 0, products = 0, rest = 0;
};

void print_tasks(TiledTrainer& trainer, std::int64_t next) {
  std::map<std::string, Times> groups;
  std::vector<std::string> order;
  for (const TiledTaskTimes& of : trainer.traced_step(next, 20)) {
    if (of.task.form == tiled::Form::kPause) continue;
    std::string name = tiled::describe(of.task);
    name = name.substr(0, name.find(", tile"));
    if (!groups.contains(name)) order.push_back(name);
    Times& times = groups[name];
    ++times.count;
    times.first = std::min(times.first, of.first_slab), times.last = std::max(times.last, of.first_slab);
    times.end = std::max(times.end, of.end);
    times.products += of.products - of.first_slab, times.rest += of.end - of.products;
  }
  std::sort(order.begin(), order.end(),
            [&](const auto& a, const auto& b) { return groups[a].first < groups[b].first; });
  for (const std::string& name : order) {
    const Times& of = groups[name];
    std::printf("    %-28s %4d tiles: first slab %6.2f to %6.2f, end %6.2f; products %5.2f, then %5.2f\n",
                name.c_str(), of.count, 1e6 * of.first, 1e6 * of.last, 1e6 * of.end,
                1e6 * of.products / of.count, 1e6 * of.rest / of.count);
  }
}

struct Wanted {
  bool portable = false;
  bool tasks = false;
  bool chosen = false;  // only the tiling that would be taken
  std::string trace;    // a file
};

/// For plots/tiled_step.py.
void write_trace(const std::string& path, const std::string& workload, Precision precision,
                 TiledTrainer& trainer, std::int64_t next) {
  nlohmann::json tasks = nlohmann::json::array();
  for (const TiledTaskTimes& of : trainer.traced_step(next, 20))
    if (of.task.form != tiled::Form::kPause)
      tasks.push_back({{"multiprocessor", of.multiprocessor},
                       {"task", tiled::describe(of.task)},
                       {"begin_seconds", of.begin},
                       {"first_slab_seconds", of.first_slab},
                       {"products_seconds", of.products},
                       {"end_seconds", of.end}});
  std::ofstream file(path);
  file << nlohmann::json{{"workload", workload}, {"precision", to_string(precision)}, {"tasks", tasks}}
       << "\n";
  if (!file.flush()) throw InputError(path + ": cannot be written");
}

void print_times(const std::string& name, Precision precision, const Wanted& wanted) {
  const Workload workload = parse_workload_name(name);
  const Dataset data = make_dataset(workload, std::int64_t{1} << 28);
  const Parameters initial = initial_parameters(workload.model.widths, workload.seed);
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount, 0);
  const tiled::Network network{workload.model.widths, workload.batch_size};
  const bool relu = workload.model.activation == Activation::kRelu;
  const DeviceInfo info = device_info(0);
  const bool is_portable = tiled_takes_portable(workload, precision, info.compute_major, info.compute_minor,
                                                multiprocessors, {.portable = wanted.portable});
  const std::span<const tiled::Tiling> tilings =
      is_portable ? tiled::portable_tilings(precision) : tiled::wgmma_tilings(precision);
  const tiled::Tiling chosen = tiled::choose_tiling(network, relu, multiprocessors, tilings, precision);
  for (const tiled::Tiling& tiling : tilings) {
    if (wanted.chosen && tiling != chosen) continue;
    const int chosen_parts = tiled::choose_parts(network, tiling, multiprocessors, precision);
    for (const int parts : std::set{tiled::kNoParts, chosen_parts}) {
      const bool taken = tiling == chosen && parts == chosen_parts;
      const auto trainer = make_kept_tiled_trainer(
          workload, precision, data.train(), initial, 0,
          {.timed = wanted.tasks || !wanted.trace.empty(), .tiling = tiling, .slabs_of_part = parts});
      const float first_loss = (trainer->train(0, 1), trainer->losses(0, 1)[0]);
      const StepTime time = step_time(*trainer, 0.01);
      std::printf("%-40s %s %3dx%-3d parts %2d %s %9.2f us (planned %7.2f)  loss %.4f -> %.4f\n",
                  name.c_str(), std::string(to_string(precision)).c_str(), tiling.rows(), tiling.columns,
                  parts, taken ? "*" : " ", time.microseconds,
                  tiled::make_schedule(network, tiling, multiprocessors, precision, parts).cycles / 1755,
                  first_loss, trainer->losses(time.next_step - 1, 1)[0]);
      if (wanted.tasks && taken) print_tasks(*trainer, time.next_step);
      if (!wanted.trace.empty() && taken)
        write_trace(wanted.trace, name, precision, *trainer, time.next_step);
      std::fflush(stdout);
    }
  }
}

int run(std::vector<std::string> arguments) {
  Wanted wanted;
  if (arguments.empty()) throw InputError("no precision given");
  const Precision precision = parse_precision(arguments[0]);
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i] == "--portable")
      wanted.portable = true;
    else if (arguments[i] == "--tasks")
      wanted.tasks = true;
    else if (arguments[i] == "--chosen")
      wanted.chosen = true;
    else if (arguments[i] == "--trace" && i + 1 < arguments.size())
      wanted.trace = arguments[++i];
    else
      print_times(arguments[i], precision, wanted);
  }
  return 0;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  return headroom::run_program("tiled_task_times", [&] { return headroom::run({argv + 1, argv + argc}); });
}
