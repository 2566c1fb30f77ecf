// The update is one foreach kernel, not the optimizer's one a tensor: in a graph nothing else is left of the
// optimizer, and a user who captures a step would write it so.
#include "libtorch/graph.h"

#include "libtorch/autograd_step.h"
#include "libtorch/graph_trainer.h"

namespace headroom::libtorch {
namespace {

class AutogradGraphTrainer : public GraphTrainer {
 public:
  AutogradGraphTrainer(const Workload& workload, Precision precision, const DatasetView& data,
                       const Parameters& initial, int device_index)
      : GraphTrainer(workload, precision, data, device_index, workload.inputs()),
        train_step_(workload, precision, scale(), device(), AutogradStep::Update::kForeach) {
    set_parameters(initial);
    capture();
    set_parameters(initial);
  }

  std::string note() override { return scale() == 1 ? graph_note() : graph_note() + ", " + scale_note(); }

 private:
  void queue_steps(const at::Tensor& features, const at::Tensor& labels, const at::Tensor& losses) override {
    for (std::int64_t step = 0; step < features.size(0); ++step)
      losses.select(0, step).copy_(train_step_(features.select(0, step), labels.select(0, step)));
  }

  std::vector<at::Tensor> parameter_tensors() override { return train_step_.parameters(); }

  AutogradStep train_step_;
};

}  // namespace

std::unique_ptr<Trainer> make_graph(const Workload& workload, Precision precision, const DatasetView& data,
                                    const Parameters& initial, int device) {
  return with_errors_of_ours(
      [&] { return std::make_unique<AutogradGraphTrainer>(workload, precision, data, initial, device); });
}

}  // namespace headroom::libtorch
