// Prints step times of cuda-layered on several devices and on one, in microseconds: `ranks_times PRECISION WORKLOAD...`.
//
// For work on the kernels only; what is reported comes from `headroom run`. Each workload is trained on its devices with one
// sum of all gradients, with a sum for each bucket, and then on one device with its own batch: the same work without sums.
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/dataset.h"
#include "layered/trainer.h"
#include "step_time.h"

namespace headroom {
namespace {

int print_times(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const Workload ranked = parse_workload_name(argv[i]);
    const Dataset data = make_dataset(ranked, std::int64_t{1} << 26);
    const Parameters initial = initial_parameters(ranked.model.widths, ranked.seed);
    std::vector<int> devices(static_cast<std::size_t>(ranked.devices));
    std::iota(devices.begin(), devices.end(), 0);
    const Precision precision = parse_precision(argv[1]);
    const auto print = [&](const char* how, const Workload& workload, std::int64_t least_bucket) {
      try {
        const auto trainer =
            make_layered_trainer(workload, precision, data.train(), initial, 0, devices, least_bucket);
        const float first_loss = (trainer->train(0, 1), trainer->losses(0, 1)[0]);
        const StepTime time = step_time(*trainer, 0.02);
        (void)trainer->parameters();  // the same on all ranks, or it throws
        std::printf("%-52s %s %-12s %10.2f us  loss %.4f -> %.4f  %s\n", argv[i], argv[1], how,
                    time.microseconds, static_cast<double>(first_loss),
                    static_cast<double>(trainer->losses(time.next_step - 1, 1)[0]), trainer->note().c_str());
      } catch (const std::exception& error) {
        std::printf("%-52s %s %-12s %s\n", argv[i], argv[1], how, error.what());
      }
      std::fflush(stdout);
    };
    print("buckets", ranked, kLeastBucket);
    if (ranked.parameter_count() > kLeastBucket) {
      print("one sum", ranked, std::int64_t{1} << 40);
      print("small", ranked, std::int64_t{1} << 17);
    }
    print("one device", ranked.of_a_rank(), kLeastBucket);
    print("joined", ranked.joined(), kLeastBucket);
  }
  return 0;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  return headroom::run_program("ranks_times", [&] { return headroom::print_times(argc, argv); });
}
