// The streamed kernel behind the trainer contract: what a launch takes, and parameters on their way in and out.
//
// The masters stay on the device as tiles from one launch to the next.
#include "streamed/trainer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "device/copies.h"
#include "device/device.h"
#include "streamed/arguments.h"
#include "streamed/logit_sums.h"
#include "trainers/persistent_trainer.h"
#include "trainers/samples.h"
#include "trainers/step_factors.h"

namespace headroom {
namespace {

using namespace streamed;

constexpr std::int64_t kFirstLaunch = 16;  // steps, before a launch was timed
constexpr std::int64_t kMostSteps = std::int64_t{1} << 12;
constexpr int kCounterWords = kBarrierCounters * kCounterSpacing;
constexpr std::int64_t kStagedValues = std::int64_t{1} << 24;

class StreamedTrainer : public PersistentTrainer {
 public:
  StreamedTrainer(const Workload& workload, Precision precision, const DatasetView& data,
                  const Parameters& initial, const Plan& plan, int held, const StreamedOptions& options,
                  jit::ReadyKernel kernel)
      : PersistentTrainer(workload.model.widths, {kFirstLaunch, kMostSteps}),
        precision_(precision),
        optimizer_(workload.optimizer),
        batches_(data.batches(workload.batch_size)),
        plan_(plan),
        layout_{precision, optimizer_.slots() == 0 && packs_activations(plan, precision)},
        kernel_(std::move(kernel)),
        step_bytes_(weight_bytes_per_step(workload, precision) - kept_bytes_per_step(plan)) {
    const std::int64_t activations = plan.output_tiles * plan.groups * activation_bytes(layout_);
    const std::int64_t logits = std::int64_t{plan.batch} * plan.logit_columns;
    weights_ = zeros<unsigned char>(plan.tiles * 1024);
    biases_ = zeros<float>(plan.biases);
    hidden_ = zeros<unsigned char>(activations);
    gradients_ = zeros<unsigned char>(activations);
    logit_parts_ =
        zeros<float>(std::int64_t{plan.logit_parts} * plan.groups * kGroupRows * plan.logit_columns);
    bias_terms_ = zeros<float>(logits);
    row_losses_ = zeros<float>(plan.batch);
    counters_ = zeros<std::uint32_t>(kCounterWords + kLogitSumSets * kLogitSumsPitch * 2);
    for (int slot = 0; slot < optimizer_.slots(); ++slot) {
      slots_.push_back(zeros<unsigned char>(plan.tiles * 1024));
      bias_slots_.push_back(zeros<float>(plan.biases));
    }
    if (!slots_.empty()) factors_ = zeros<rules::UpdateFactors>(kMostSteps + 1);
    upload(data);
    arguments_.held = held;
    set_arguments(workload, options);
    set_parameters(initial);
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel_.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  }

  Parameters parameters() override { return collect(layout_, arguments_.masters, biases_); }
  std::vector<Parameters> slots() override {
    std::vector<Parameters> result;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot)
      result.push_back(collect(slot_layout(precision_), parts_of(slot), bias_slots_[slot]));
    return result;
  }

  void set_parameters(const Parameters& parameters) override {
    require_widths_of(parameters);
    // Padding stays zero by itself, and a launch begins with an update by nothing times these gradients, unless the
    // network before has broken down.
    gradients_.fill_bytes(0);

    weights_.fill_bytes(0);
    place(parameters, layout_, arguments_.masters, biases_);
  }
  void set_slots(const std::vector<Parameters>& slots) override {
    require_slots(slots, widths_, optimizer_.slots());
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      slots_[slot].fill_bytes(0);
      place(slots[slot], slot_layout(precision_), parts_of(slot), bias_slots_[slot]);
    }
  }

  std::optional<SetupCache> setup_cache() override {
    return kernel_.was_kept ? SetupCache::kWarm : SetupCache::kCold;
  }
  std::string note() override {
    return std::to_string(plan_.members) + " thread blocks, at least " +
           std::to_string(static_cast<std::int64_t>(step_bytes_)) + " bytes of weights" +
           (slots_.empty() ? "" : " and states") + " a step; " + kernel_.note;
  }

 private:
  void set_arguments(const Workload& workload, const StreamedOptions& options) {
    const bool has_labels = workload.loss == Loss::kCrossEntropy;
    const auto mean_of = static_cast<float>(plan_.batch * (has_labels ? 1 : workload.outputs()));
    const auto scale = static_cast<float>(loss_scale(precision_, plan_.batch));
    const std::int64_t second_part = master_stride(precision_) == 512 ? plan_.tiles * 512 : 512;
    arguments_.plan = plan_;
    arguments_.masters = {{weights_.data(), weights_.data() + second_part}};
    arguments_.biases = biases_.data();
    arguments_.inputs = inputs_.data();
    arguments_.labels = labels_.data();
    arguments_.hidden = hidden_.data();
    arguments_.gradients = gradients_.data();
    arguments_.logit_parts = logit_parts_.data();
    arguments_.bias_terms = bias_terms_.data();
    arguments_.row_losses = row_losses_.data();
    arguments_.losses = losses_.data();
    arguments_.counters = counters_.data();
    arguments_.logit_sums = reinterpret_cast<std::uint64_t*>(counters_.data() + kCounterWords);
    arguments_.status = status_.data();
    arguments_.batches = batches_;
    arguments_.loss_slots = kKeptLosses;
    arguments_.wait_nanoseconds = static_cast<std::int64_t>(1e9 * options.wait_seconds);
    arguments_.lost_barrier = options.lost_barrier;
    arguments_.update_factor = -static_cast<float>(workload.optimizer.learning_rate) / scale;
    arguments_.gradient_scale = scale / mean_of;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      arguments_.slots[slot] = slots_[slot].data();
      arguments_.bias_slots[slot] = bias_slots_[slot].data();
    }
    arguments_.factors = factors_.data();
    arguments_.rule = rules::update_factors(workload.optimizer, 0);
    arguments_.inverse_loss_scale = 1 / scale;
    arguments_.targets = targets_.data();
  }

  void upload(const DatasetView& data) {
    const std::int64_t batch_bytes =
        std::int64_t{plan_.input_tiles} * plan_.groups * activation_bytes(layout_);
    const std::int64_t samples = batches_ * plan_.batch;
    if (data.targets == nullptr) {
      labels_ = labels_of(data, samples);
    } else {
      targets_ = DeviceBuffer<float>(samples * plan_.classes);
      targets_.copy_from({data.targets, static_cast<std::size_t>(samples * plan_.classes)});
    }
    inputs_ = DeviceBuffer<unsigned char>(batches_ * batch_bytes);
    for_each_staged_batches(data, plan_.batch, batches_, stream_,
                            [&](const float* features, std::int64_t count, std::int64_t first) {
                              pack_inputs(plan_, layout_, features, count,
                                          inputs_.data() + first * batch_bytes, stream_.get());
                            });
  }

  /// Where a slot's tiles are.
  Masters parts_of(std::size_t slot) { return {{slots_[slot].data(), slots_[slot].data() + 512}}; }

  Parameters collect(const Layout& layout, const Masters& masters, const DeviceBuffer<float>& biases) {
    Parameters result(widths_);
    for_each_piece([&](int index, int first_row, int rows, DeviceBuffer<float>& staged) {
      const LayerPlan& layer = plan_.layer[index];
      unpack_weights(plan_, index, layout, masters, first_row, rows, staged.data(), stream_.get());
      copy(result.weight(index).data() + std::int64_t{first_row} * layer.in, staged.data(),
           std::int64_t{rows} * layer.in, cudaMemcpyDeviceToHost);
    });
    for (int index = 0; index < plan_.layers; ++index)
      copy(result.bias(index).data(), biases.data() + plan_.layer[index].bias, plan_.layer[index].out,
           cudaMemcpyDeviceToHost);
    return result;
  }
  /// Padding of the tiles stays as it is.
  void place(const Parameters& parameters, const Layout& layout, const Masters& masters,
             DeviceBuffer<float>& biases) {
    for_each_piece([&](int index, int first_row, int rows, DeviceBuffer<float>& staged) {
      const LayerPlan& layer = plan_.layer[index];
      copy(staged.data(), parameters.weight(index).data() + std::int64_t{first_row} * layer.in,
           std::int64_t{rows} * layer.in, cudaMemcpyHostToDevice);
      pack_weights(plan_, index, layout, staged.data(), first_row, rows, masters, stream_.get());
      stream_.synchronize();
    });
    biases.fill_bytes(0);
    for (int index = 0; index < plan_.layers; ++index)
      copy(biases.data() + plan_.layer[index].bias, parameters.bias(index).data(), plan_.layer[index].out,
           cudaMemcpyHostToDevice);
  }

  /// Waits for the copy.
  void copy(float* destination, const float* source, std::int64_t values, cudaMemcpyKind kind) {
    CUDA_CHECK(cudaMemcpyAsync(destination, source, static_cast<std::size_t>(values) * sizeof(float), kind,
                               stream_.get()));
    stream_.synchronize();
  }

  /// All weights in pieces of rows that fit a buffer on the device: piece(layer, first row, rows, buffer).
  template <class Piece>
  void for_each_piece(const Piece& piece) {
    std::int64_t largest = 0;
    for (int index = 0; index < plan_.layers; ++index)
      largest = std::max(largest, rows_at_once(index) * plan_.layer[index].in);
    DeviceBuffer<float> staged(largest);
    for (int index = 0; index < plan_.layers; ++index) {
      const std::int64_t at_once = rows_at_once(index), out = plan_.layer[index].out;
      for (std::int64_t row = 0; row < out; row += at_once)
        piece(index, static_cast<int>(row), static_cast<int>(std::min(at_once, out - row)), staged);
    }
  }
  std::int64_t rows_at_once(int index) const {
    const std::int64_t in = plan_.layer[index].in, out = plan_.layer[index].out;
    return std::clamp<std::int64_t>(kStagedValues / in, 1, out);
  }

  void launch(std::int64_t first_step, std::int64_t steps) override {
    CUDA_CHECK(
        cudaMemsetAsync(counters_.data(), 0, static_cast<std::size_t>(counters_.bytes()), stream_.get()));
    if (!slots_.empty()) set_step_factors(optimizer_, first_step, steps + 1, factors_.data(), stream_.get());
    arguments_.first_step = first_step;
    arguments_.steps = static_cast<std::int32_t>(steps);
    void* parameters[] = {&arguments_};
    // Cooperative: all thread blocks are on the chip at once, or the launch fails.
    cudaLaunchAttribute cooperative{};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(plan_.members));
    config.blockDim = dim3(static_cast<unsigned>(block_threads(precision_)));
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = stream_.get();
    config.attrs = &cooperative;
    config.numAttrs = 1;
    CUDA_CHECK(cudaLaunchKernelExC(&config, kernel_.function, parameters));
  }

  /// Its parameters are those of no step then.
  std::string describe_status(std::uint32_t status) const override {
    return "cuda-streamed: thread block " + std::to_string(status >> 16) + " of " +
           std::to_string(plan_.members) + " waited too long at barrier " +
           std::to_string((status & 0xffff) - 1) + " of a launch; it was given up";
  }

  const Precision precision_;
  const Optimizer optimizer_;
  const std::int64_t batches_;
  const Plan plan_;
  const Layout layout_;
  const jit::ReadyKernel kernel_;
  const double step_bytes_;

  DeviceBuffer<unsigned char> weights_, inputs_, hidden_, gradients_;
  DeviceBuffer<float> biases_, logit_parts_, bias_terms_, row_losses_;
  DeviceBuffer<std::int32_t> labels_;
  std::vector<DeviceBuffer<unsigned char>> slots_;  // tiles of 1024 bytes each
  std::vector<DeviceBuffer<float>> bias_slots_;
  DeviceBuffer<rules::UpdateFactors> factors_;
  DeviceBuffer<float> targets_;
  DeviceBuffer<std::uint32_t> counters_;  // then the sums of joined logits
  Arguments arguments_{};
};

}  // namespace

namespace streamed {

Limits limits_of(int device) {
  return {.sm_count = device_attribute(cudaDevAttrMultiProcessorCount, device),
          .shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
}

}  // namespace streamed

std::optional<std::string> streamed_unavailable(int device) {
  if (auto reason = device_missing(device)) return reason;
  const DeviceInfo info = device_info(device);
  if (info.compute_major < 9)
    return "compute capability " + std::to_string(info.compute_major) + "." +
           std::to_string(info.compute_minor) + ", needs 9.0";
  return std::nullopt;
}

std::unique_ptr<Trainer> make_streamed_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const StreamedOptions& options,
                                               const streamed::MakeKernel& make) {
  validate(workload);
  if (const auto reason = streamed_unavailable(device)) throw UnsupportedError("cuda-streamed: " + *reason);
  require_data_for(workload, data, "cuda-streamed");
  use_device(device);
  Limits limits = limits_of(device);
  if (options.most_members > 0) limits.sm_count = std::min(limits.sm_count, options.most_members);
  PlanAndKernel all = plan_with_kernel(workload, precision, limits,
                                       device_attribute(cudaDevAttrL2CacheSize, device), options.hold);
  if (all.kernel.rule && options.told >= 0) all.kernel.told = options.told;
  if (all.kernel.rule && options.held >= 0) all.held = options.held;
  return std::make_unique<StreamedTrainer>(workload, precision, data, initial, all.plan, all.held, options,
                                           make(all.kernel));
}

}  // namespace headroom
