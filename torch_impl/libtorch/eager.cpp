// How long such a step takes is the host's doing, so what a launch costs there stands in the record's message.
#include "libtorch/eager.h"

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <limits>

#include "libtorch/autograd_step.h"
#include "libtorch/torch_trainer.h"

namespace headroom::libtorch {
namespace {

std::string cpu_model() {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "a CPU that does not say its name";
}

/// What a launch costs the host, and which it is: an eager step is made of them.
std::string launch_note(at::Device device) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLaunches = 1000;
  at::Tensor value = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device));
  double least = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < 3; ++attempt) {
    c10::cuda::device_synchronize();
    const Clock::time_point start = Clock::now();
    for (int launch = 0; launch < kLaunches; ++launch) value.zero_();
    c10::cuda::device_synchronize();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count() / kLaunches);
  }
  char text[64];
  std::snprintf(text, sizeof text, "a zero_() of one float takes %.1f us from C++ on ", least * 1e6);
  return text + cpu_model();
}

class EagerTrainer : public TorchTrainer {
 public:
  EagerTrainer(const Workload& workload, Precision precision, const DatasetView& data,
               const Parameters& initial, int device_index)
      : TorchTrainer(workload, precision, data, device_index,
                     autocast_loss_scale(precision, workload.batch_size)),
        train_step_(workload, precision, scale(), device()) {
    number_ = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device()));
    start_from(initial);
    if (device().is_cuda()) launch_note_ = launch_note(device());
  }

  std::string note() override { return scale_note() + (scale() == 1 ? "" : ", ") + launch_note_; }

 private:
  void run_steps(std::int64_t first_step, std::int64_t count) override {
    const bool counts = counts_steps(workload().optimizer);
    if (counts && first_step != next_step_) number_.fill_(static_cast<double>(first_step));
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      if (counts) number_.add_(1);
      const at::Tensor loss = train_step_(features(step), targets(step), number_);
      loss_slot(step).copy_(loss);
    }
    next_step_ = first_step + count;
  }

  std::vector<at::Tensor> state_tensors(int part) override { return train_step_.state_tensors(part); }

  AutogradStep train_step_;
  at::Tensor number_;            // of the step that was trained last, counted from 1
  std::int64_t next_step_ = -1;  // what it says
  std::string launch_note_;
};

}  // namespace

std::unique_ptr<Trainer> make_eager(const Workload& workload, Precision precision, const DatasetView& data,
                                    const Parameters& initial, int device) {
  return with_errors_of_ours(
      [&] { return std::make_unique<EagerTrainer>(workload, precision, data, initial, device); });
}

}  // namespace headroom::libtorch
