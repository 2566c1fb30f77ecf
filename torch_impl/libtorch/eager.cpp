#include "libtorch/eager.h"

#include "libtorch/autograd_step.h"
#include "libtorch/torch_trainer.h"

namespace headroom::libtorch {
namespace {

class EagerTrainer : public TorchTrainer {
 public:
  EagerTrainer(const Workload& workload, Precision precision, const DatasetView& data,
               const Parameters& initial, int device_index)
      : TorchTrainer(workload, precision, data, device_index),
        train_step_(workload, precision, scale(), device(), AutogradStep::Update::kOptimizer) {
    set_parameters(initial);
  }

  std::string note() override { return scale_note(); }

 private:
  void run_steps(std::int64_t first_step, std::int64_t count) override {
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      const at::Tensor loss = train_step_(features(step), labels(step));
      loss_slot(step).copy_(loss);
    }
  }

  std::vector<at::Tensor> parameter_tensors() override { return train_step_.parameters(); }

  AutogradStep train_step_;
};

}  // namespace

std::unique_ptr<Trainer> make_eager(const Workload& workload, Precision precision, const DatasetView& data,
                                    const Parameters& initial, int device) {
  return with_errors_of_ours(
      [&] { return std::make_unique<EagerTrainer>(workload, precision, data, initial, device); });
}

}  // namespace headroom::libtorch
