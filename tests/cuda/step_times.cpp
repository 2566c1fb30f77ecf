// Prints step times of one backend, in microseconds: `STRATEGY_step_times [PRECISION|all] [WORKLOAD...]`.
//
// For work on the kernels only; what is reported comes from `headroom run`. Without workloads: the seed
// comparison. The build makes one program a strategy: its header and its maker are compile definitions.
#include <cstdio>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/workload.h"
#include "data/dataset.h"
#include "step_time.h"
#include HEADROOM_TRAINER_HEADER

namespace headroom {
namespace {

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
      const std::string in = std::string(to_string(precision));
      try {
        const Parameters initial = initial_parameters(workload.model.widths, workload.seed);
        const auto trainer = HEADROOM_MAKE_TRAINER(workload, precision, data.train(), initial, 0);
        const float first_loss = (trainer->train(0, 1), trainer->losses(0, 1)[0]);
        const StepTime time = step_time(*trainer, 0.02);
        std::printf("%-40s %s %10.2f us  %7.2f TFLOP/s  loss %.4f -> %.4f\n", name.c_str(), in.c_str(),
                    time.microseconds, workload.flops_per_step() / time.microseconds * 1e-6, first_loss,
                    trainer->losses(time.next_step - 1, 1)[0]);
      } catch (const UnsupportedError& refused) {
        std::printf("%-40s %s refused: %s\n", name.c_str(), in.c_str(), refused.what());
      }
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  return headroom::run_program("step_times", [&] { return headroom::print_times(argc, argv); });
}
