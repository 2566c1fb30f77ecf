#include "libtorch/torch_trainer.h"

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/version.h>

#include <algorithm>
#include <limits>

#include "core/host_clock.h"

namespace headroom::libtorch {
namespace {

at::ScalarType input_type(Precision precision) {
  switch (precision) {
    case Precision::kFp16:
      return at::kHalf;
    case Precision::kBf16:
      return at::kBFloat16;
    case Precision::kFp32:
    case Precision::kTf32:
      break;
  }
  return at::kFloat;
}

/// Every switch of PyTorch that changes a product's arithmetic, set rather than left at a default.
void set_precision_switches(Precision precision) {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(precision == Precision::kTf32);
  context.setBlasPreferredBackend(at::BlasBackend::Cublas);
  context.setAllowTF32CuDNN(precision == Precision::kTf32);
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
  context.setAllowFP16AccumulationCuBLAS(false);
#endif
}

/// A host tensor over memory that is only read.
at::Tensor host_tensor(const void* data, at::IntArrayRef shape, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), shape, at::TensorOptions().dtype(type));
}

at::Device torch_device(int device) {
  return device < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device));
}

}  // namespace

TorchTrainer::TorchTrainer(const Workload& workload, Precision precision, const DatasetView& data, int device,
                           double scale)
    : workload_(workload),
      precision_(precision),
      device_(torch_device(device)),
      scale_(scale),
      batches_(data.batches(workload.batch_size)) {
  set_precision_switches(precision);
  if (device_.is_cuda()) {
    at::globalContext().lazyInitDevice(at::kCUDA);
    c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device_);
    c10::cuda::CUDACachingAllocator::resetPeakStats(device_.index());
    begin_.emplace(at::kCUDA,
                   c10::EventFlag::BACKEND_DEFAULT);  // with timing, which PyTorch's default is without
    end_.emplace(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  }
  // Rounded on the host, so that the device never holds both copies; copied always, so that the rows that
  // need no rounding do not train from a mapped file.
  features_ = host_tensor(data.features, {data.samples, data.feature_count}, at::kFloat)
                  .to(input_type(precision))
                  .to(device_, input_type(precision), /*non_blocking=*/false, /*copy=*/true);
  targets_ = workload.loss == Loss::kCrossEntropy
                 ? host_tensor(data.labels, {data.samples}, at::kInt).to(at::kLong).to(device_)
                 : host_tensor(data.targets, {data.samples, workload.outputs()}, at::kFloat)
                       .to(device_, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  losses_ = at::full({kKeptLosses}, std::numeric_limits<float>::quiet_NaN(),
                     at::TensorOptions().dtype(at::kFloat).device(device_));
}

TorchTrainer::~TorchTrainer() {
  features_.reset();
  targets_.reset();
  losses_.reset();
  if (!device_.is_cuda()) return;
  try {
    c10::cuda::CUDACachingAllocator::emptyCache();  // other workers share the device
  } catch (const std::exception&) {                 // after a CUDA error there is nothing left to give back
  }
}

Timing TorchTrainer::train(std::int64_t first_step, std::int64_t count) {
  return with_errors_of_ours([&] {
    const HostClock clock;
    if (device_.is_cuda()) {
      const c10::Stream stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device_);
      begin_->record(stream);
      run_steps(first_step, count);
      end_->record(stream);
      end_->synchronize();
    } else {
      run_steps(first_step, count);
    }
    return device_.is_cuda() ? clock.timing(begin_->elapsedTime(*end_) * 1e-3) : clock.timing();
  });
}

std::vector<float> TorchTrainer::losses(std::int64_t first_step, std::int64_t count) {
  if (count > kKeptLosses) throw InputError("losses: at most " + std::to_string(kKeptLosses) + " are kept");
  return with_errors_of_ours([&] {
    const at::Tensor slots = at::arange(first_step, first_step + count, at::TensorOptions().dtype(at::kLong))
                                 .remainder(kKeptLosses)
                                 .to(device_);
    const at::Tensor values = losses_.index_select(0, slots).cpu();
    return std::vector<float>(values.const_data_ptr<float>(), values.const_data_ptr<float>() + count);
  });
}

Parameters TorchTrainer::parameters() {
  return with_errors_of_ours([&] { return read(0); });
}

std::vector<Parameters> TorchTrainer::slots() {
  return with_errors_of_ours([&] {
    std::vector<Parameters> result;
    for (int slot = 1; slot <= workload_.optimizer.slots(); ++slot) result.push_back(read(slot));
    return result;
  });
}

void TorchTrainer::set_parameters(const Parameters& parameters) {
  if (parameters.widths() != workload_.model.widths)
    throw InputError("set_parameters: parameters of another network");
  with_errors_of_ours([&] {
    write(0, parameters);
    parameters_changed();
  });
}

void TorchTrainer::set_slots(const std::vector<Parameters>& slots) {
  require_slots(slots, workload_.model.widths, workload_.optimizer.slots());
  with_errors_of_ours([&] {
    for (std::size_t slot = 0; slot < slots.size(); ++slot) write(static_cast<int>(slot) + 1, slots[slot]);
  });
}

void TorchTrainer::start_from(const Parameters& parameters) {
  const c10::AutoGradMode no_gradient(false);
  for (int slot = 1; slot <= workload_.optimizer.slots(); ++slot) {
    clear(slot);
    for (const at::Tensor& tensor : state_tensors(slot)) tensor.zero_();
  }
  set_parameters(parameters);
}

Parameters TorchTrainer::read(int part) {
  Parameters result = Parameters::unset(workload_.model.widths);
  float* next = result.flat().data();
  for (const at::Tensor& tensor : state_tensors(part)) {
    at::from_blob(next, tensor.sizes(), at::kFloat).copy_(tensor.detach());
    next += tensor.numel();
  }
  return result;
}

void TorchTrainer::write(int part, const Parameters& values) {
  const c10::AutoGradMode no_gradient(false);
  clear(part);
  const float* next = values.flat().data();
  for (const at::Tensor& tensor : state_tensors(part)) {
    tensor.copy_(host_tensor(next, tensor.sizes(), at::kFloat));
    next += tensor.numel();
  }
}

std::int64_t TorchTrainer::peak_device_bytes() {
  if (!device_.is_cuda()) return -1;
  return with_errors_of_ours([&] {
    constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index()).allocated_bytes[all].peak;
  });
}

at::Tensor TorchTrainer::features(std::int64_t step) const {
  return features_.narrow(0, step % batches_ * workload_.batch_size, workload_.batch_size);
}

at::Tensor TorchTrainer::targets(std::int64_t step) const {
  return targets_.narrow(0, step % batches_ * workload_.batch_size, workload_.batch_size);
}

at::Tensor TorchTrainer::all_features(std::int64_t columns) {
  features_ = features_.narrow(0, 0, batches_ * workload_.batch_size);
  if (columns > features_.size(1))
    features_ = at::constant_pad_nd(features_, {0, columns - features_.size(1)});
  return features_;
}

at::Tensor TorchTrainer::all_targets(std::int64_t columns) {
  targets_ = targets_.narrow(0, 0, batches_ * workload_.batch_size);
  if (targets_.dim() == 2 && columns > targets_.size(1))
    targets_ = at::constant_pad_nd(targets_, {0, columns - targets_.size(1)});
  return targets_;
}

std::string TorchTrainer::scale_note() const {
  return scale_ == 1 ? std::string() : "static loss scale " + std::to_string(static_cast<long>(scale_));
}

at::Tensor TorchTrainer::loss_slot(std::int64_t step) const { return losses_.select(0, step % kKeptLosses); }

}  // namespace headroom::libtorch
