// Prints step times of the kernel for narrow networks, in microseconds: `narrow_step_times [--trace] [PRECISION|all] NETWORK...`, where a
// network is a workload, or one with a division of the work: WORKLOAD:blocks,strips,team,clustered,tall,row_parts,sum_tall. With --trace also when the
// first thread has come where, in cycles (narrow/arguments.h).
//
// For work on the kernels only; what is reported comes from `headroom run`.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/dataset.h"
#include "device/memory.h"
#include "kept_kernels.h"
#include "narrow/compiled.h"

namespace headroom {
namespace {

void print_times(const std::string& network, Precision precision, bool traces) {
  const std::size_t colon = network.find(':');
  const Workload workload = parse_workload_name(network.substr(0, colon));
  narrow::Options options;
  if (colon != network.npos) {
    narrow::Plan plan = narrow::plan_of(workload, precision);
    if (std::sscanf(network.c_str() + colon + 1, "%d,%d,%d,%d,%d,%d,%d", &plan.blocks, &plan.strips,
                    &plan.team, &plan.is_clustered, &plan.tall, &plan.row_parts, &plan.sum_tall) != 7)
      throw InputError("'" + network +
                       "': expected WORKLOAD:blocks,strips,team,clustered,tall,row_parts,sum_tall");
    options.plan = plan;
  }
  const Dataset data = make_dataset(workload, std::int64_t{1} << 26);
  const Parameters initial = initial_parameters(workload.model.widths, workload.seed);
  const auto make = [&](const narrow::Options& with) {
    return make_compiled_narrow_trainer(workload, precision, data.train(), initial, 0, jit::found_compiler(),
                                        jit::Cache(folder_of_kept_kernels()), with);
  };
  const auto trainer = make(options);
  const double once = trainer->train(0, 16).device_seconds / 16;
  const std::int64_t steps = std::max<std::int64_t>(16, static_cast<std::int64_t>(0.02 / once));
  std::vector<double> samples;
  std::int64_t next = 16;
  for (int block = 0; block < 7; ++block, next += steps)
    samples.push_back(trainer->train(next, steps).device_seconds / static_cast<double>(steps));
  std::sort(samples.begin(), samples.end());
  const double microseconds = 1e6 * samples[samples.size() / 2];
  std::printf("%-60s %s %9.2f us %7.2f TFLOP/s  loss %.4f -> %.4f  %s\n", network.c_str(),
              std::string(to_string(precision)).c_str(), microseconds,
              workload.flops_per_step() / microseconds * 1e-6, trainer->losses(0, 1)[0],
              trainer->losses(next - 1, 1)[0], trainer->note().c_str());
  if (traces) {
    DeviceBuffer<std::uint32_t> marks(narrow::kTraceMarks);
    marks.fill_bytes(0);
    options.trace = marks.data();
    const auto traced = make(options);
    traced->train(0, 64);
    const std::vector<std::uint32_t> found = marks.to_host();
    std::printf("   cycles:");
    for (std::size_t i = 1; i < found.size() && found[i] != 0; ++i) std::printf(" %u", found[i] - found[0]);
    std::printf("\n");
  }
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  int at = 1;
  const bool traces = argc > 1 && std::strcmp(argv[1], "--trace") == 0;
  if (traces) ++at;
  std::vector<Precision> precisions(kAllPrecisions.begin(), kAllPrecisions.end());
  if (at < argc && std::string(argv[at]) != "all") precisions = {parse_precision(argv[at])};
  for (++at; at < argc; ++at)
    for (const Precision precision : precisions) {
      try {
        print_times(argv[at], precision, traces);
      } catch (const UnsupportedError& refused) {
        std::printf("%-60s %s refused: %s\n", argv[at], std::string(to_string(precision)).c_str(),
                    refused.what());
      } catch (const jit::CompileError& refused) {
        std::printf("%-60s %s: %s\n", argv[at], std::string(to_string(precision)).c_str(), refused.what());
      }
    }
  return 0;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  try {
    return headroom::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "narrow_step_times: %s\n", error.what());
    return 1;
  }
}
