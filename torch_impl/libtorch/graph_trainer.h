// What every captured LibTorch row has in common: several steps in one CUDA graph, moved on by the device.
//
// A captured step cannot be told its batch or its loss slot. Indices on the device name them: one gather of a
// graph's batches opens the graph, one scatter of its losses and the indices' next values close it, all of it
// inside the timed region. Two graphs serve any number of steps: one of steps_per_graph() and one of a single
// step. Large batches would be costly to gather, and there are few of them: each has a graph of its own that
// reads it where it lies. Without a GPU nothing is captured and the steps run one by one.
#pragma once

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>

#include "libtorch/torch_trainer.h"

namespace headroom::libtorch {

class GraphTrainer : public TorchTrainer {
 protected:
  /// `feature_columns`, `target_columns`: of the batches that queue_steps() is given; zeros beyond the workload's inputs and
  /// outputs.
  GraphTrainer(const Workload& workload, Precision precision, const DatasetView& data, int device,
               std::int64_t feature_columns, std::int64_t target_columns, double scale);

  /// Enqueues one step for each of features [steps, batch, feature_columns], labels [steps, batch] or targets
  /// [steps, batch, target_columns], and losses [steps], which each step's loss is written to. Runs under capture: no allocation
  /// that outlives it.
  virtual void queue_steps(const at::Tensor& features, const at::Tensor& targets,
                           const at::Tensor& losses) = 0;
  /// Of step `index` of those that are queued, counted from 1: one fp32. Right where counts_steps().
  at::Tensor number(std::int64_t index) const { return numbers_.select(0, index); }

  static constexpr int kSideStreams = 2;
  /// A stream beside the one that is captured, for work that does not wait for the chain; the same for all
  /// trainers, because PyTorch keeps a library's workspace for every stream it has seen.
  c10::cuda::CUDAStream side_stream(int which) const;

  /// Runs some steps, then captures. The row's parameters are not what they were afterwards.
  void capture();
  /// Seconds of a step of the captured graph, the least of a few tries; trains.
  double measured_step_seconds();
  std::int64_t steps_per_graph() const { return steps_per_graph_; }
  std::string graph_note() const;

 private:
  void run_steps(std::int64_t first_step, std::int64_t count) final;
  void queue(std::int64_t steps);
  void queue_batch(std::int64_t batch);
  void close_steps(std::int64_t steps);
  template <class Work>
  std::unique_ptr<at::cuda::CUDAGraph> capture_work(Work&& work);
  at::cuda::CUDAGraph& graph_for(std::int64_t step, std::int64_t left);
  void go_to(std::int64_t step);

  std::int64_t steps_per_graph_;
  bool graph_per_batch_;
  at::Tensor features_;        // [batches, batch, feature_columns]
  at::Tensor targets_;         // [batches, batch] or [batches, batch, target_columns]
  at::Tensor graph_features_;  // [steps_per_graph, batch, feature_columns]
  at::Tensor graph_targets_;   // [steps_per_graph, ...], of targets_
  at::Tensor graph_losses_;    // [steps_per_graph]
  at::Tensor offsets_;         // 0, 1, ..., steps_per_graph - 1
  at::Tensor batch_indices_;   // of the next steps_per_graph steps
  at::Tensor loss_slots_;      // likewise
  at::Tensor numbers_;         // likewise, fp32
  std::unique_ptr<at::cuda::CUDAGraph> one_step_, many_steps_;
  std::vector<std::unique_ptr<at::cuda::CUDAGraph>> batch_graphs_;
  c10::MempoolId_t pool_{0, 0};  // of all graphs: they run one after another and hand nothing on
  std::int64_t next_step_ = -1;  // what the indices say
};

}  // namespace headroom::libtorch
