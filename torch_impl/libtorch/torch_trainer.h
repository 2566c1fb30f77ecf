// What every LibTorch row has in common: PyTorch's switches, resident data, loss slots and timing.
//
// Losses go to a ring of 2^20 floats on the device: copying one to the host inside a block would wait for the
// device at every step. A row adds run_steps(), the only code that is timed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/util/Exception.h>

#include <optional>
#include <stdexcept>
#include <vector>

#include "core/dataset_view.h"
#include "core/error.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom::libtorch {

class TorchTrainer : public Trainer {
 public:
  /// `device` as in TrainerRequest: a CUDA device, or -1 for the CPU.
  TorchTrainer(const Workload& workload, Precision precision, const DatasetView& data, int device,
               double scale);
  ~TorchTrainer() override;
  TorchTrainer(const TorchTrainer&) = delete;
  TorchTrainer& operator=(const TorchTrainer&) = delete;

  // PyTorch's errors leave these as this project's: OutOfMemoryError, or std::runtime_error without its
  // backtrace.
  Timing train(std::int64_t first_step, std::int64_t count) final;
  std::vector<float> losses(std::int64_t first_step, std::int64_t count) final;
  Parameters parameters() final;
  std::vector<Parameters> slots() final;
  // In place: captured graphs keep their addresses.
  void set_parameters(const Parameters& parameters) final;
  void set_slots(const std::vector<Parameters>& slots) final;
  std::int64_t peak_device_bytes() final;

 protected:
  /// Enqueues the steps. Errors may be PyTorch's own.
  virtual void run_steps(std::int64_t first_step, std::int64_t count) = 0;
  /// weight1 [out, in], bias1 [out], weight2, ...: fp32, on the device. Part 0: the parameters; from 1 on: of the optimizer's slots.
  virtual std::vector<at::Tensor> state_tensors(int part) = 0;
  /// Before a part is set: what lies between its tensors may have become NaN with them.
  virtual void clear(int part) { (void)part; }
  /// After set_parameters(): a row that keeps more than the parameters brings it up to date.
  virtual void parameters_changed() {}
  /// Their state at step 0: slots are zeros.
  void start_from(const Parameters& parameters);

  at::Device device() const { return device_; }
  const Workload& workload() const { return workload_; }
  Precision precision() const { return precision_; }
  double scale() const { return scale_; }  ///< of the loss, before its gradient is taken
  /// Of step `step`: [batch, inputs], in the type of the first product, and int64 labels [batch] or fp32 targets [batch, outputs].
  at::Tensor features(std::int64_t step) const;
  at::Tensor targets(std::int64_t step) const;
  /// Where the loss of `step` goes: one fp32 on the device.
  at::Tensor loss_slot(std::int64_t step) const;
  std::int64_t batches() const { return batches_; }
  /// [batches * batch, columns], in the type of the first product; columns over the inputs are zero.
  at::Tensor all_features(std::int64_t columns);
  /// Labels [batches * batch], or targets [batches * batch, columns]; columns over the outputs are zero.
  at::Tensor all_targets(std::int64_t columns);
  const at::Tensor& all_losses() const { return losses_; }  ///< [kKeptLosses], slot: step mod kKeptLosses
  std::string scale_note() const;                           ///< the static loss scale, if there is one

 private:
  Parameters read(int part);
  void write(int part, const Parameters& values);

  Workload workload_;
  Precision precision_;
  at::Device device_;
  double scale_;
  std::int64_t batches_;
  at::Tensor features_;  // [samples, inputs], in the type of the first product
  at::Tensor targets_;   // int64 labels [samples] or fp32 targets [samples, outputs]
  at::Tensor losses_;    // [kKeptLosses], slot: step mod kKeptLosses
  std::optional<c10::Event> begin_, end_;
};

/// Runs `work` and turns PyTorch's errors into this project's.
template <typename Work>
decltype(auto) with_errors_of_ours(Work&& work) {
  try {
    return work();
  } catch (const c10::OutOfMemoryError& error) {
    throw OutOfMemoryError(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

}  // namespace headroom::libtorch
