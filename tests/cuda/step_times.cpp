// Prints step times of one backend, in microseconds: `STRATEGY_step_times [PRECISION|all] [WORKLOAD...]`.
//
// For work on the kernels only; what is reported comes from `headroom run`. Without workloads: the seed
// comparison. The build makes one program a strategy: its header and its maker are compile definitions.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/workload.h"
#include "data/dataset.h"
#include HEADROOM_TRAINER_HEADER

namespace headroom {
namespace {

double step_microseconds(const Workload& workload, Precision precision, const Dataset& data,
                         double* first_loss, double* last_loss) {
  const Parameters initial = initial_parameters(workload.model.widths, workload.seed);
  auto trainer = HEADROOM_MAKE_TRAINER(workload, precision, data.train(), initial, 0);
  const double once = trainer->train(0, 16).device_seconds / 16;
  const std::int64_t steps = std::max<std::int64_t>(16, static_cast<std::int64_t>(0.02 / once));
  std::vector<double> samples;
  std::int64_t next = 16;
  for (int block = 0; block < 7; ++block, next += steps)
    samples.push_back(trainer->train(next, steps).device_seconds / static_cast<double>(steps));
  *first_loss = trainer->losses(0, 1)[0];
  *last_loss = trainer->losses(next - 1, 1)[0];
  std::sort(samples.begin(), samples.end());
  return 1e6 * samples[samples.size() / 2];
}

int print_times(int argc, char** argv) {
  std::vector<Precision> precisions(kAllPrecisions.begin(), kAllPrecisions.end());
  if (argc > 1 && std::string(argv[1]) != "all") precisions = {parse_precision(argv[1])};
  std::vector<std::string> names;
  for (int i = 2; i < argc; ++i) names.emplace_back(argv[i]);
  if (names.empty())
    for (const int width : {128, 256, 512, 1024, 2048, 4096, 8192})
      names.push_back("mlp-784x" + std::to_string(width) + "x" + std::to_string(width) + "x" +
                      std::to_string(width) + "x10-b32");
  for (const std::string& name : names) {
    const Workload workload = parse_workload_name(name);
    const Dataset data = make_dataset(workload, std::int64_t{1} << 28);
    for (const Precision precision : precisions) {
      double first = 0, last = 0, microseconds = 0;
      try {
        microseconds = step_microseconds(workload, precision, data, &first, &last);
      } catch (const UnsupportedError& refused) {
        std::printf("%-40s %s refused: %s\n", name.c_str(), std::string(to_string(precision)).c_str(),
                    refused.what());
        continue;
      }
      std::printf("%-40s %s %10.2f us  %7.2f TFLOP/s  loss %.4f -> %.4f\n", name.c_str(),
                  std::string(to_string(precision)).c_str(), microseconds,
                  workload.flops_per_step() / microseconds * 1e-6, first, last);
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
    std::fprintf(stderr, "step_times: %s\n", error.what());
    return 1;
  }
}
