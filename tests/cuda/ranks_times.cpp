// Prints step times of cuda-layered or cuda-tiled on several devices and on one, in microseconds:
// `ranks_times [cuda-layered|cuda-tiled] PRECISION WORKLOAD...`.
//
// For work on the kernels only; what is reported comes from `headroom run`. Each workload is trained on its devices, then on one device
// with its own batch, the same work without sums, and on one with the joined batch.
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/dataset.h"
#include "kept_kernels.h"
#include "layered/trainer.h"
#include "step_time.h"
#include "tiled/compiled.h"

namespace headroom {
namespace {

/// One workload of several devices.
class Times {
 public:
  Times(std::string name, Precision precision)
      : name_(std::move(name)),
        precision_(precision),
        ranked_(parse_workload_name(name_)),
        data_(make_dataset(ranked_, std::int64_t{1} << 26)),
        initial_(initial_parameters(ranked_.model.widths, ranked_.seed)),
        devices_(static_cast<std::size_t>(ranked_.devices)) {
    std::iota(devices_.begin(), devices_.end(), 0);
  }

  void print_layered() const {
    const auto layered = [&](const char* how, const Workload& workload) {
      print(how, [&]() -> std::unique_ptr<Trainer> {
        return make_layered_trainer(workload, precision_, data_.train(), initial_, 0, devices_);
      });
    };
    layered("ranks", ranked_);
    layered("one device", ranked_.of_a_rank());
    layered("joined", ranked_.joined());
  }

  void print_tiled() const {
    const auto tiled = [&](const char* how, const Workload& workload) {
      print(how, [&]() -> std::unique_ptr<Trainer> {
        const std::vector<int> devices(devices_.begin(), devices_.begin() + workload.devices);
        return make_compiled_tiled_trainer(workload, precision_, data_.train(), initial_, devices,
                                           folder_of_kept_kernels());
      });
    };
    tiled("ranks", ranked_);
    tiled("one device", ranked_.of_a_rank());
    tiled("joined", ranked_.joined());
  }

 private:
  void print(const char* how, const std::function<std::unique_ptr<Trainer>()>& make) const {
    const std::string in(to_string(precision_));
    try {
      const auto trainer = make();
      const float first_loss = (trainer->train(0, 1), trainer->losses(0, 1)[0]);
      const StepTime time = step_time(*trainer, 0.02);
      (void)trainer->parameters();  // the same on all ranks, or it throws
      std::printf("%-52s %s %-12s %10.2f us  loss %.4f -> %.4f  %s\n", name_.c_str(), in.c_str(), how,
                  time.microseconds, static_cast<double>(first_loss),
                  static_cast<double>(trainer->losses(time.next_step - 1, 1)[0]), trainer->note().c_str());
    } catch (const std::exception& error) {
      std::printf("%-52s %s %-12s %s\n", name_.c_str(), in.c_str(), how, error.what());
    }
    std::fflush(stdout);
  }

  std::string name_;
  Precision precision_;
  Workload ranked_;
  Dataset data_;
  Parameters initial_;
  std::vector<int> devices_;
};

int print_times(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  std::string backend = "cuda-layered";
  if (!arguments.empty() && arguments.front().starts_with("cuda-")) {
    backend = arguments.front();
    arguments.erase(arguments.begin());
  }
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const Times times(arguments[i], parse_precision(arguments.front()));
    if (backend == "cuda-tiled")
      times.print_tiled();
    else
      times.print_layered();
  }
  return 0;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  return headroom::run_program("ranks_times", [&] { return headroom::print_times(argc, argv); });
}
