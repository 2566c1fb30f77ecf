// libtorch-eager's step as it is; only the losses of a graph's steps are written by one kernel at its end.
#include "libtorch/graph.h"

#include <ATen/ops/stack.h>

#include "libtorch/autograd_step.h"
#include "libtorch/graph_trainer.h"

namespace headroom::libtorch {
namespace {

class AutogradGraphTrainer : public GraphTrainer {
 public:
  AutogradGraphTrainer(const Workload& workload, Precision precision, const DatasetView& data,
                       const Parameters& initial, int device_index)
      : GraphTrainer(workload, precision, data, device_index, workload.inputs(), workload.outputs(),
                     autocast_loss_scale(precision, workload.batch_size)),
        train_step_(workload, precision, scale(), device()) {
    start_from(initial);
    capture();
    start_from(initial);
  }

  std::string note() override { return scale() == 1 ? graph_note() : graph_note() + ", " + scale_note(); }

 private:
  void queue_steps(const at::Tensor& features, const at::Tensor& targets, const at::Tensor& losses) override {
    std::vector<at::Tensor> queued;
    for (std::int64_t step = 0; step < features.size(0); ++step)
      queued.push_back(train_step_(features.select(0, step), targets.select(0, step), number(step)));
    at::Tensor to = losses;
    at::stack_out(to, queued);  // one kernel for all losses of a graph
  }

  std::vector<at::Tensor> state_tensors(int part) override { return train_step_.state_tensors(part); }

  AutogradStep train_step_;
};

}  // namespace

std::unique_ptr<Trainer> make_graph(const Workload& workload, Precision precision, const DatasetView& data,
                                    const Parameters& initial, int device) {
  return with_errors_of_ours(
      [&] { return std::make_unique<AutogradGraphTrainer>(workload, precision, data, initial, device); });
}

}  // namespace headroom::libtorch
