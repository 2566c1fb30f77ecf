// Prints what cuda-tiled's multiprocessors do when, and the step's time with each tiling: `tiled_task_times PRECISION [--portable]
// [--tasks] WORKLOAD...`. With --portable the kernel for every GPU; with --tasks a line for each form and layer of the step's tasks: when the first and the last had their first slab, when
// the last was stored, and the means of products and of what follows them, in microseconds.
//
// For work on the kernel only; what is reported comes from `headroom run`.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/workload.h"
#include "data/dataset.h"
#include "device/device.h"
#include "tiled/schedule.h"
#include "tiled/trainer.h"

namespace headroom {
namespace {

double step_microseconds(Trainer& trainer, std::int64_t& next) {
  const double once = trainer.train(0, 64).device_seconds / 64;
  const std::int64_t steps = std::max<std::int64_t>(16, static_cast<std::int64_t>(0.01 / once));
  std::vector<double> samples;
  next = 64;
  for (int block = 0; block < 6; ++block, next += steps)
    samples.push_back(trainer.train(next, steps).device_seconds / static_cast<double>(steps));
  std::sort(samples.begin(), samples.end());
  return 1e6 * samples[samples.size() / 2];
}

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

int print_times(int argc, char** argv) {
  const Precision precision = parse_precision(argc > 1 ? argv[1] : "bf16");
  bool tasks = false, portable = tiled_is_portable(precision, 0);
  int first = 2;
  for (; first < argc && argv[first][0] == '-'; ++first)
    (std::strcmp(argv[first], "--portable") == 0 ? portable : tasks) = true;
  for (int i = first; i < argc; ++i) {
    const Workload workload = parse_workload_name(argv[i]);
    const Dataset data = make_dataset(workload, std::int64_t{1} << 28);
    const Parameters initial = initial_parameters(workload.model.widths, workload.seed);
    const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount, 0);
    const tiled::Network network{workload.model.widths, workload.batch_size};
    const bool relu = workload.model.activation == Activation::kRelu;
    const std::span<const tiled::Tiling> tilings =
        portable ? std::span<const tiled::Tiling>(tiled::kPortableTilings) : tiled::kTilings;
    const tiled::Tiling chosen = tiled::choose_tiling(network, relu, multiprocessors, tilings, precision);
    for (const tiled::Tiling& tiling : tilings) {
      if (!tiled::has_kernel(tiling, relu)) continue;
      const auto trainer =
          make_tiled_trainer(workload, precision, data.train(), initial, 0, {.tiling = tiling});
      std::int64_t next = 0;
      const double time = step_microseconds(*trainer, next);
      std::printf("%-40s %s %3dx%-3d %s %9.2f us (planned %7.2f)  loss %.4f -> %.4f\n", argv[i],
                  std::string(to_string(precision)).c_str(), tiling.rows(), tiling.columns,
                  tiling == chosen ? "*" : " ", time,
                  tiled::make_schedule(network, tiling, multiprocessors, precision).cycles / 1755,
                  trainer->losses(0, 1)[0], trainer->losses(next - 1, 1)[0]);
      if (tasks && tiling == chosen) print_tasks(*trainer, next);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  try {
    return headroom::print_times(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tiled_task_times: %s\n", error.what());
    return 1;
  }
}
