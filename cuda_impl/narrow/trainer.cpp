#include "narrow/trainer.h"

#include <utility>
#include <vector>

#include "core/error.h"
#include "device/check.h"
#include "device/copies.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/step_watch.h"
#include "narrow/prepare.h"
#include "trainers/persistent_trainer.h"
#include "trainers/samples.h"
#include "trainers/step_factors.h"

namespace headroom {
namespace {

using namespace narrow;

constexpr std::int64_t kFirstLaunch = 64;  // steps, before a launch was timed
constexpr std::int64_t kMostSteps = 4096;

class NarrowTrainer : public PersistentTrainer {
 public:
  NarrowTrainer(const Workload& workload, Precision precision, const DatasetView& data,
                const Parameters& initial, std::unique_ptr<StepKernel> kernel, const Options& options)
      : PersistentTrainer(workload.model.widths, {kFirstLaunch, kMostSteps}),
        workload_(workload),
        kernel_(std::move(kernel)),
        plan_(kernel_->plan()),
        flat_(static_cast<std::int64_t>(initial.flat().size())),
        masters_(sum_floats(plan_)),
        image_(zeros<unsigned char>(image_bytes(plan_))),
        places_(sum_floats(plan_)),
        partials_(is_local(plan_) ? 0 : std::int64_t{sum_sets(plan_)} * sum_floats(plan_)),
        block_losses_(plan_.blocks),
        factors_(kMostSteps),
        counter_(zeros<std::uint32_t>(1)) {
    for (int slot = 0; slot < workload.optimizer.slots(); ++slot) slots_.emplace_back(sum_floats(plan_));
    set_places(plan_, places_.data(), stream_.get());
    upload(data);
    set_arguments(precision, data.batches(workload.batch_size));
    arguments_.trace = options.trace;
    set_state(State::initial(initial, workload.optimizer.slots()));
  }

  Parameters parameters() override { return collect(masters_); }
  void set_parameters(const Parameters& parameters) override {
    require_widths_of(parameters);
    place(parameters, masters_, image_.data());
  }
  std::vector<Parameters> slots() override {
    std::vector<Parameters> result;
    for (const DeviceBuffer<float>& slot : slots_) result.push_back(collect(slot));
    return result;
  }
  void set_slots(const std::vector<Parameters>& slots) override {
    require_slots(slots, widths_, workload_.optimizer.slots());
    for (std::size_t slot = 0; slot < slots.size(); ++slot) place(slots[slot], slots_[slot], nullptr);
  }

  std::optional<SetupCache> setup_cache() override {
    return kernel_->was_kept() ? SetupCache::kWarm : SetupCache::kCold;
  }
  std::string note() override {
    return "a network on every SM, " + std::to_string(plan_.blocks) +
           (plan_.blocks == 1         ? " SM"
            : plan_.is_clustered != 0 ? " SMs in a cluster"
                                      : " SMs") +
           ", tiles of " + std::to_string(tile_rows(plan_)) + " rows, teams of " +
           std::to_string(plan_.team) + "; " + kernel_->note();
  }

 private:
  void upload(const DatasetView& data) {
    const std::int64_t batches = data.batches(plan_.batch), samples = batches * plan_.batch;
    inputs_ = DeviceBuffer<unsigned char>(batches * tiles(plan_) * activation_bytes(plan_, 0));
    targets_ = DeviceBuffer<unsigned char>(batches * tiles(plan_) * target_bytes(plan_));
    const bool has_labels = workload_.loss == Loss::kCrossEntropy;
    const int columns = has_labels ? 1 : workload_.outputs();
    DeviceBuffer<std::uint32_t> words(samples * columns);
    CUDA_CHECK(
        cudaMemcpyAsync(words.data(), has_labels ? static_cast<const void*>(data.labels) : data.targets,
                        static_cast<std::size_t>(words.bytes()), cudaMemcpyHostToDevice, stream_.get()));
    pack_targets(plan_, words.data(), columns, batches, targets_.data(), stream_.get());
    stream_.synchronize();
    for_each_staged_batches(data, plan_.batch, batches, stream_,
                            [&](const float* features, std::int64_t count, std::int64_t first) {
                              pack_inputs(plan_, features, count,
                                          inputs_.data() + first * tiles(plan_) * activation_bytes(plan_, 0),
                                          stream_.get());
                            });
  }

  void set_arguments(Precision precision, std::int64_t batches) {
    arguments_.inputs = inputs_.data();
    arguments_.targets = targets_.data();
    arguments_.partials = partials_.data();
    arguments_.block_losses = block_losses_.data();
    arguments_.masters = masters_.data();
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) arguments_.slots[slot] = slots_[slot].data();
    arguments_.places = places_.data();
    arguments_.image = image_.data();
    arguments_.factors = factors_.data();
    arguments_.losses = losses_.data();
    arguments_.loss_slots = kKeptLosses;
    arguments_.counter = counter_.data();
    arguments_.status = status_.data();
    arguments_.wait_nanoseconds = static_cast<std::int64_t>(1e9 * StepWatch::seconds_of_a_step(workload_));
    arguments_.batches = batches;
    const double scale = loss_scale(precision, plan_.batch);
    const double mean_of =
        plan_.batch *
        (workload_.loss == Loss::kCrossEntropy ? 1.0 : static_cast<double>(workload_.outputs()));
    arguments_.gradient_scale = static_cast<float>(scale / mean_of);
    arguments_.inverse_loss_scale = static_cast<float>(1 / scale);
  }

  void launch(std::int64_t first_step, std::int64_t steps) override {
    CUDA_CHECK(cudaMemsetAsync(counter_.data(), 0, sizeof(std::uint32_t), stream_.get()));
    set_step_factors(workload_.optimizer, first_step, steps, factors_.data(), stream_.get());
    arguments_.first_step = first_step;
    arguments_.steps = steps;
    kernel_->launch(arguments_, stream_);
  }
  std::string describe_status(std::uint32_t status) const override {
    return "cuda-fused: thread block " + std::to_string(status >> 16) + " of " +
           std::to_string(plan_.blocks) + " waited too long at meeting " + std::to_string(status & 0xffff) +
           " of a launch; it was given up";
  }

  Parameters collect(const DeviceBuffer<float>& placed) {
    Parameters result(widths_);
    collect_parameters(plan_, placed.data(), flat_.data(), stream_.get());
    stream_.synchronize();
    flat_.copy_to(result.flat());
    return result;
  }
  void place(const Parameters& from, DeviceBuffer<float>& placed, unsigned char* image) {
    flat_.copy_from(from.flat());
    place_parameters(plan_, flat_.data(), placed.data(), image, stream_.get());
    stream_.synchronize();
  }

  const Workload workload_;
  const std::unique_ptr<StepKernel> kernel_;
  const Plan plan_;
  DeviceBuffer<float> flat_, masters_;
  std::vector<DeviceBuffer<float>> slots_;
  DeviceBuffer<unsigned char> image_, inputs_, targets_;
  DeviceBuffer<std::int32_t> places_;
  DeviceBuffer<float> partials_, block_losses_;
  DeviceBuffer<rules::UpdateFactors> factors_;
  DeviceBuffer<std::uint32_t> counter_;
  Arguments arguments_{};
};

}  // namespace

namespace narrow {

Limits limits_of(int device) {
  return {.sm_count = device_attribute(cudaDevAttrMultiProcessorCount, device),
          .shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
}

}  // namespace narrow

std::unique_ptr<Trainer> make_narrow_trainer(const Workload& workload, Precision precision,
                                             const DatasetView& data, const Parameters& initial, int device,
                                             const CompileStep& compile, const Options& options) {
  validate(workload);
  if (const auto reason = device_missing(device)) throw UnsupportedError("cuda-fused: " + *reason);
  const Limits limits = limits_of(device);
  if (const auto reason = refusal(workload, precision, limits))
    throw UnsupportedError("cuda-fused: " + *reason);
  require_data_for(workload, data, "cuda-fused");
  use_device(device);
  return std::make_unique<NarrowTrainer>(workload, precision, data, initial,
                                         compile(workload, precision, limits, options.plan), options);
}

}  // namespace headroom
