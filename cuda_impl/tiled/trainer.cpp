// The tiled kernels behind the trainer contract: buffers, tensor maps, the lists, and training cut into launches.
//
// A launch trains many steps. Its counters begin at zero, so a launch may be of any steps; what goes on from one launch to the next
// is which of the two copies of weights and activations the next step reads.
#include "tiled/trainer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "core/error.h"
#include "core/host_clock.h"
#include "core/training_rules.h"
#include "device/copies.h"
#include "device/device.h"
#include "device/kept_losses.h"
#include "device/launch_pace.h"
#include "device/memory.h"
#include "device/step_watch.h"
#include "device/stream.h"
#include "machine/tensor_map.h"
#include "tiled/arguments.h"
#include "tiled/kernels.h"
#include "tiled/schedule.h"
#include "tiled/waits.h"
#include "trainers/samples.h"
#include "trainers/step_factors.h"

namespace headroom {
namespace {

using namespace tiled;

constexpr std::int64_t kFirstLaunch = 64;  // steps, before a launch was timed
constexpr std::int64_t kMostSteps = 4096;
constexpr int kBiasValues = 128;  // biases are read by tiles, which have 64 or 128 rows or columns

constexpr std::int64_t kLine = 128;  ///< bytes of a line of the L2

/// The kernel for every GPU has plain multiply-adds and mma.sync.
bool is_portable(const std::optional<Tiling>& tiling) { return tiling && tiling->portable; }
bool is_sixteen_bits(Precision precision) {
  return precision == Precision::kFp16 || precision == Precision::kBf16;
}

/// A word in the host's memory that kernels write to, which outlives a launch that ends with an error.
class HostReport {
 public:
  HostReport() {
    CUDA_CHECK(cudaMallocHost(&word_, sizeof(std::uint64_t)));
    *static_cast<std::uint64_t*>(word_) = 0;
  }
  ~HostReport() { (void)cudaFreeHost(word_); }
  HostReport(const HostReport&) = delete;
  HostReport& operator=(const HostReport&) = delete;
  std::uint64_t* data() { return static_cast<std::uint64_t*>(word_); }
  std::uint64_t value() const { return *static_cast<const volatile std::uint64_t*>(word_); }

 private:
  void* word_ = nullptr;
};

std::string to_string(WaitFor what) {
  switch (what) {
    case WaitFor::kRows:
      return "what its rows' factor is made of";
    case WaitFor::kColumns:
      return "what its columns' factor is made of";
    case WaitFor::kFreeStage:
      return "a stage of the ring to be free";
    case WaitFor::kFullStage:
      return "a stage of the ring to be full";
    case WaitFor::kTurn:
      return "its team's turn";
    case WaitFor::kOutputs:
      return "the outputs of its rows";
    case WaitFor::kParts:
      return "the sums of its parts";
  }
  return "";
}

/// Buffers of one layer. Factors are bytes: values of 16 or 32 bits.
struct LayerMemory {
  DeviceBuffer<unsigned char> weights, input, gradient;  // input: of all but the first layer
  DeviceBuffer<float> masters, bias;                     // masters: none where the weights are the masters
  std::vector<DeviceBuffer<float>> slots, bias_slots;
  DeviceBuffer<std::uint32_t> kept;
  DeviceBuffer<float4> part_sums;
};

class Tiled : public TiledTrainer {
 public:
  Tiled(const Workload& workload, Precision precision, const DatasetView& data, const Parameters& initial,
        StepPlan plan, jit::ReadyKernel kernel, const TiledOptions& options)
      : workload_(workload),
        precision_(precision),
        network_(std::move(plan.network)),
        rules_(plan.kernel.rules),
        tiling_(plan.kernel.tiling),
        batches_(data.batches(workload.batch_size)),
        schedule_(std::move(plan.schedule)),
        kernel_(std::move(kernel)) {
    DeviceMemory::reset_peak();
    choose_stages(options);
    if (options.lost_task >= 0)
      ++schedule_.lists.front()[static_cast<std::size_t>(options.lost_task)].columns.need;
    allocate_layers();
    upload(data);
    upload_lists();
    set_arguments(options);
    require_resident();
    set_state(State::initial(initial, workload.optimizer.slots()));
  }

  Timing train(std::int64_t first_step, std::int64_t count) override {
    KeptLosses::require_steps(first_step, count);
    const HostClock clock;
    const double device_seconds = launch_all(first_step, count);
    losses_.trained(first_step, count);
    return clock.timing(device_seconds);
  }

  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    return losses_.read(first_step, count, stream_);
  }

  Parameters parameters() override {
    return collect([this](LayerMemory& layer) { return std::pair{masters_of(layer), layer.bias.data()}; });
  }
  void set_parameters(const Parameters& parameters) override {
    if (parameters.widths() != network_.widths)
      throw InputError("set_parameters: parameters of another network");
    parity_ = 0;
    place(parameters, !masters_are_factors(),
          [this](LayerMemory& layer) { return std::pair{masters_of(layer), layer.bias.data()}; });
  }
  std::vector<Parameters> slots() override {
    std::vector<Parameters> result;
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(workload_.optimizer.slots()); ++slot)
      result.push_back(collect([slot](LayerMemory& layer) {
        return std::pair{layer.slots[slot].data(), layer.bias_slots[slot].data()};
      }));
    return result;
  }
  void set_slots(const std::vector<Parameters>& slots) override {
    require_slots(slots, network_.widths, workload_.optimizer.slots());
    for (std::size_t slot = 0; slot < slots.size(); ++slot)
      place(slots[slot], false, [slot](LayerMemory& layer) {
        return std::pair{layer.slots[slot].data(), layer.bias_slots[slot].data()};
      });
  }

  std::int64_t peak_device_bytes() override { return DeviceMemory::peak_bytes(); }
  std::optional<SetupCache> setup_cache() override {
    return kernel_.was_kept ? SetupCache::kWarm : SetupCache::kCold;
  }

  std::string note() override {
    return "tiles of " + std::to_string(tiling_.rows()) + "x" + std::to_string(tiling_.columns) +
           (tiling_.teams == 2 ? ", two teams" : "") +
           (std::ranges::max(schedule_.parts) > 1 ? ", weight gradients in parts" : "") +
           (!tiling_.portable                ? ""
            : precision_ == Precision::kFp32 ? ", plain multiply-adds"
                                             : ", mma.sync") +
           ", " + std::to_string(schedule_.lists.size()) + " multiprocessors, at most " +
           std::to_string(schedule_.longest()) + " tiles each; " + kernel_.note;
  }

  std::vector<TiledTaskTimes> traced_step(std::int64_t first_step, std::int64_t count) override {
    if (!rules_.timed) throw std::logic_error("traced_step: of a trainer whose kernel is not timed");
    DeviceBuffer<TaskTimes> times(tasks_.size());
    times.fill_bytes(0);
    arguments_.times = times.data();
    train(first_step, count);
    arguments_.times = nullptr;
    const std::vector<TaskTimes> found = times.to_host();
    std::uint64_t zero = std::numeric_limits<std::uint64_t>::max();
    for (const TaskTimes& of : found)
      if (of.first_slab != 0) zero = std::min(zero, of.first_slab);
    const auto seconds = [&](std::uint64_t time) {
      return time == 0 ? 0 : 1e-9 * (static_cast<double>(time) - static_cast<double>(zero));
    };
    std::vector<TiledTaskTimes> result;
    std::size_t at = 0;
    for (std::size_t block = 0; block < schedule_.lists.size(); ++block)
      for (const Task& task : schedule_.lists[block]) {
        const TaskTimes& of = found[at++];
        result.push_back({static_cast<int>(block), task, seconds(of.begin), seconds(of.first_slab),
                          seconds(of.products), seconds(of.end)});
      }
    return result;
  }

 private:
  std::int64_t row_tiles() const { return divide_up(network_.batch, tiling_.rows()); }
  bool has_wide_outputs() const { return workload_.outputs() > kOutputsOfTile; }
  WeightPlaces places(int layer) const {
    return {network_.out(layer), network_.in(layer), tiling_, pitch_of(network_.in(layer))};
  }
  std::int64_t value_bytes() const { return is_sixteen_bits(precision_) ? 2 : 4; }  // of factors
  /// Of the portable kernel: whether slopes are taken from something else than the activations that products read.
  bool keeps_apart() const {
    const Activation activation = workload_.model.activation;
    return !rules::slope_is_of_output(activation) ||
           (precision_ == Precision::kTf32 && activation != Activation::kRelu);
  }
  bool masters_are_factors() const { return precision_ == Precision::kFp32; }
  /// Of the parity at hand.
  float* masters_of(LayerMemory& layer) const {
    if (!masters_are_factors()) return layer.masters.data();
    return reinterpret_cast<float*>(layer.weights.data() + parity_ * layer.weights.bytes() / 2);
  }
  /// Values of a row of a factor. Copies take rows on 16 bytes; and no part of a row that lies in one line of a stage begins in one
  /// line of the L2 and ends in the next, which would be fetched at half the speed.
  std::int64_t pitch_of(std::int64_t columns) const {
    std::int64_t pitch = 16 / value_bytes();
    while (pitch < columns && pitch < kLine / value_bytes()) pitch *= 2;
    return (columns + pitch - 1) / pitch * pitch;
  }
  DeviceBuffer<unsigned char> factor(std::int64_t slices, std::int64_t rows, std::int64_t columns) const {
    return zeros<unsigned char>(slices * rows * pitch_of(columns) * value_bytes());
  }

  /// As many stages of the portable kernel's ring as there is shared memory for.
  void choose_stages(const TiledOptions& options) {
    if (!tiling_.portable) {
      shared_bytes_ = wgmma_memory(tiling_).all;
      return;
    }
    const PortableMemory memory = portable_memory(precision_, tiling_);
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    int shared = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (options.shared_bytes > 0) shared = std::min(shared, options.shared_bytes);
    const int stages = std::min(kMostStages, (shared - memory.beside_the_ring) / memory.stage_bytes);
    if (stages < 2)
      throw UnsupportedError("cuda-tiled: a thread block has " + std::to_string(shared) +
                             " bytes of shared memory, needs " +
                             std::to_string(memory.beside_the_ring + 2 * memory.stage_bytes));
    arguments_.stages = stages;
    shared_bytes_ = memory.beside_the_ring + stages * memory.stage_bytes;
  }

  void allocate_layers() {
    const bool relu = workload_.model.activation == Activation::kRelu;
    const std::int64_t tile = std::int64_t{tiling_.rows()} * tiling_.columns;
    for (int layer = 0; layer < network_.layers(); ++layer) {
      const std::int64_t in = network_.in(layer), out = network_.out(layer);
      LayerMemory memory;
      memory.weights = factor(2, out, in);
      if (layer > 0) memory.input = factor(2, network_.batch, in);
      memory.gradient = factor(1, network_.batch, out);
      if (!masters_are_factors()) memory.masters = zeros<float>(places(layer).size());
      const std::int64_t biases = std::int64_t{divide_up(out, kBiasValues)} * kBiasValues;
      memory.bias = zeros<float>(biases);
      for (int slot = 0; slot < workload_.optimizer.slots(); ++slot) {
        memory.slots.push_back(zeros<float>(places(layer).size()));
        memory.bias_slots.push_back(zeros<float>(biases));
      }
      if (tiling_.portable) {
        if (layer + 1 < network_.layers() && keeps_apart())
          memory.kept = DeviceBuffer<std::uint32_t>(network_.batch * pitch_of(out) * value_bytes() / 4);
      } else if (layer + 1 < network_.layers()) {
        const std::int64_t values = row_tiles() * divide_up(out, tiling_.columns) * tile;
        memory.kept = DeviceBuffer<std::uint32_t>(values / (relu ? 32 : 2));
      }
      if (const int parts = schedule_.parts[static_cast<std::size_t>(layer)]; parts > 1)
        memory.part_sums = DeviceBuffer<float4>(
            tiling_.portable
                ? std::int64_t{divide_up(out, tiling_.weight_rows())} *
                      divide_up(in, tiling_.weight_columns()) * parts * tiling_.weight_rows() *
                      (tiling_.weight_columns() + 1) / 4
                : places(layer).size() / tile * parts * (tiling_.columns / 8 + 1) * tiling_.team_threads());
      layers_.push_back(std::move(memory));
    }
  }

  void upload(const DatasetView& data) {
    const std::int64_t samples = batches_ * network_.batch, columns = data.feature_count,
                       pitch = pitch_of(columns);
    if (workload_.loss == Loss::kCrossEntropy) {
      labels_ = labels_of(data, samples);
    } else {
      targets_ = DeviceBuffer<float>(samples * workload_.outputs());
      targets_.copy_from({data.targets, static_cast<std::size_t>(targets_.size())});
    }
    features_ = factor(1, samples, columns);
    for_each_staged_batches(data, network_.batch, batches_, stream_,
                            [&](const float* features, std::int64_t count, std::int64_t first) {
                              round_features(
                                  precision_, features, count * network_.batch, columns,
                                  features_.data() + first * network_.batch * pitch * value_bytes(), pitch,
                                  stream_.get());
                            });
  }

  void upload_lists() {
    std::vector<Task> tasks;
    std::vector<std::int32_t> first;
    for (const std::vector<Task>& list : schedule_.lists) {
      first.push_back(static_cast<std::int32_t>(tasks.size()));
      tasks.insert(tasks.end(), list.begin(), list.end());
    }
    first.push_back(static_cast<std::int32_t>(tasks.size()));
    tasks_ = DeviceBuffer<Task>(static_cast<std::int64_t>(tasks.size()));
    tasks_.copy_from(tasks);
    first_task_ = DeviceBuffer<std::int32_t>(static_cast<std::int64_t>(first.size()));
    first_task_.copy_from(first);
    counters_ = zeros<std::uint32_t>(std::int64_t{schedule_.counters} * kCounterStride);
    factors_ = DeviceBuffer<rules::UpdateFactors>(kMostSteps);
  }

  Factors factors(const DeviceBuffer<unsigned char>& values, std::int64_t slices, std::int64_t rows,
                  std::int64_t columns) const {
    if (tiling_.portable) return {};
    const auto element = precision_ == Precision::kBf16 ? machine::Element::kBf16 : machine::Element::kFp16;
    const int slabs = tiling_.slabs_of_stage;
    const auto kept = [](const CUtensorMap& map) {
      TensorMap words;
      static_assert(sizeof words == sizeof map);
      std::memcpy(&words, &map, sizeof words);
      return words;
    };
    return {kept(machine::tensor_map_of_panels(element, values.data(), slices, rows, columns,
                                               pitch_of(columns), kPanel, slabs)),
            kept(machine::tensor_map(element, values.data(), slices, rows, columns, pitch_of(columns),
                                     kSlab * slabs))};
  }

  Rows rows(DeviceBuffer<unsigned char>& values, std::int64_t rows, std::int64_t columns) const {
    return {values.data(), rows * pitch_of(columns), static_cast<std::int32_t>(pitch_of(columns))};
  }

  void set_arguments(const TiledOptions& options) {
    const int last = network_.layers() - 1;
    for (int layer = 0; layer <= last; ++layer) {
      LayerMemory& memory = layers_[static_cast<std::size_t>(layer)];
      LayerArguments& to = arguments_.layer[layer];
      const int in = network_.in(layer), out = network_.out(layer);
      to.weights = factors(memory.weights, 2, out, in);
      to.input = layer == 0 ? factors(features_, batches_, network_.batch, in)
                            : factors(memory.input, 2, network_.batch, in);
      to.gradient = factors(memory.gradient, 1, network_.batch, out);
      to.weight_rows = rows(memory.weights, out, in);
      to.input_rows = rows(layer == 0 ? features_ : memory.input, network_.batch, in);
      to.gradient_rows = rows(memory.gradient, network_.batch, out);
      to.kept_rows = {memory.kept.data(), 0, static_cast<std::int32_t>(pitch_of(out))};
      to.masters = reinterpret_cast<float4*>(memory.masters.data());
      to.bias = memory.bias.data();
      for (std::size_t slot = 0; slot < memory.slots.size(); ++slot) {
        to.slots[slot] = reinterpret_cast<float4*>(memory.slots[slot].data());
        to.bias_slots[slot] = memory.bias_slots[slot].data();
      }
      to.kept = memory.kept.data();
      to.part_sums = memory.part_sums.data();
      to.parts = schedule_.parts[static_cast<std::size_t>(layer)];
      to.out = out, to.in = in;
      to.out_tiles = divide_up(out, tiling_.columns), to.in_tiles = divide_up(in, tiling_.columns);
    }
    arguments_.layers = network_.layers();
    arguments_.batch = network_.batch;
    arguments_.batches = static_cast<std::int32_t>(batches_);
    arguments_.tasks = tasks_.data();
    arguments_.first_task = first_task_.data();
    arguments_.counters = counters_.data();
    arguments_.labels = labels_.data();
    arguments_.targets = targets_.data();
    arguments_.outputs_pitch = static_cast<std::int32_t>(pitch_of(workload_.outputs()));
    if (has_wide_outputs())
      outputs_ = DeviceBuffer<float>(row_tiles() * tiling_.rows() * arguments_.outputs_pitch);
    arguments_.outputs = outputs_.data();
    arguments_.output_gradient = reinterpret_cast<std::uint16_t*>(layers_.back().gradient.data());
    arguments_.loss_parts = divide_up(network_.batch, has_wide_outputs() ? kRowsOfLoss : tiling_.group_rows);
    loss_sums_ = zeros<float>(2 * std::int64_t{arguments_.loss_parts});
    arguments_.loss_sums = loss_sums_.data();
    arguments_.losses = losses_.data();
    arguments_.loss_slots = kKeptLosses;
    arguments_.factors = factors_.data();
    const double scale = loss_scale(precision_, network_.batch);
    const double mean_of = workload_.loss == Loss::kCrossEntropy
                               ? network_.batch
                               : static_cast<double>(network_.batch) * workload_.outputs();
    arguments_.gradient_scale = static_cast<float>(scale / mean_of);
    arguments_.inverse_loss_scale = static_cast<float>(1 / scale);
    const double longest =
        options.wait_seconds > 0 ? options.wait_seconds : StepWatch::seconds_of_a_step(workload_);
    arguments_.wait_nanoseconds = static_cast<std::uint64_t>(1e9 * longest);
    arguments_.report = report_.data();
    least_report_.fill_bytes(0xff);
    arguments_.least_report = least_report_.data();
  }

  void require_resident() {
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel_.function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_));
    int blocks = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel_.function, threads_of(tiling_),
                                                             static_cast<std::size_t>(shared_bytes_)));
    if (blocks < 1)
      throw UnsupportedError("cuda-tiled: a multiprocessor holds no thread block of " +
                             std::to_string(threads_of(tiling_)) + " threads with " +
                             std::to_string(shared_bytes_) + " bytes of shared memory");
  }

  double launch_all(std::int64_t first_step, std::int64_t count) {
    try {
      begin_.record(stream_);
      const double seconds = pace_.run(
          count,
          [&](std::int64_t done, std::int64_t steps) { launch(first_step + done, static_cast<int>(steps)); },
          [&] {
            end_.record(stream_);
            return seconds_between(begin_, end_);
          });
      if (pace_.worth_timing(count)) pace_.learn(seconds, count);
      return seconds;
    } catch (const CudaError&) {
      if (report_.value() == 0) throw;
      throw DeviceStuckError(given_up());
    }
  }

  void launch(std::int64_t first_step, int steps) {
    CUDA_CHECK(
        cudaMemsetAsync(counters_.data(), 0, static_cast<std::size_t>(counters_.bytes()), stream_.get()));
    set_step_factors(workload_.optimizer, first_step, steps, factors_.data(), stream_.get());
    arguments_.first_step = first_step;
    arguments_.steps = steps;
    arguments_.parity = parity_;
    void* parameters[] = {&arguments_};
    CUDA_CHECK(cudaLaunchCooperativeKernel(kernel_.function,
                                           dim3(static_cast<unsigned>(schedule_.lists.size())),
                                           dim3(static_cast<unsigned>(threads_of(tiling_))), parameters,
                                           static_cast<std::size_t>(shared_bytes_), stream_.get()));
    parity_ = (parity_ + steps) % 2;
  }

  std::string given_up() const {
    const std::uint64_t report = report_.value();
    std::string who = "a task";
    for (std::size_t block = 0; block < schedule_.lists.size(); ++block) {
      const std::vector<Task>& list = schedule_.lists[block];
      for (std::size_t i = 0; i < list.size(); ++i)
        if (list[i].order == order_of(report) && list[i].form != Form::kPause)
          who = "task " + std::to_string(i + 1) + " of " + std::to_string(list.size()) +
                " of multiprocessor " + std::to_string(block) + " (" + describe(list[i]) + ")";
    }
    return "cuda-tiled: in step " + std::to_string(arguments_.first_step + step_of(report)) + " " + who +
           " waited too long for " + to_string(what_of(report)) +
           "; the launch was given up, with its process";
  }

  /// What lies where `of` says, as parameters; through a buffer of the largest layer's size.
  template <class Of>
  Parameters collect(const Of& of) {
    Parameters result = Parameters::unset(network_.widths);
    DeviceBuffer<float> flat(largest_layer());
    for (int layer = 0; layer < network_.layers(); ++layer) {
      const auto [weights, bias] = of(layers_[static_cast<std::size_t>(layer)]);
      collect_weights(weights, places(layer), flat.data(), stream_.get());
      copy(result.weight(layer).data(), flat.data(), result.weight(layer).size(), cudaMemcpyDeviceToHost);
      copy(result.bias(layer).data(), bias, result.bias(layer).size(), cudaMemcpyDeviceToHost);
      stream_.synchronize();
    }
    return result;
  }
  template <class Of>
  void place(const Parameters& from, bool copies, const Of& of) {
    DeviceBuffer<float> flat(largest_layer());
    for (int layer = 0; layer < network_.layers(); ++layer) {
      LayerMemory& memory = layers_[static_cast<std::size_t>(layer)];
      const auto [weights, bias] = of(memory);
      copy(flat.data(), from.weight(layer).data(), from.weight(layer).size(), cudaMemcpyHostToDevice);
      copy(bias, from.bias(layer).data(), from.bias(layer).size(), cudaMemcpyHostToDevice);
      place_weights(precision_, flat.data(), places(layer), weights, copies ? memory.weights.data() : nullptr,
                    pitch_of(network_.in(layer)), stream_.get());
      stream_.synchronize();
    }
  }
  std::int64_t largest_layer() const {
    std::int64_t most = 0;
    for (int layer = 0; layer < network_.layers(); ++layer)
      most = std::max(most, std::int64_t{network_.in(layer)} * network_.out(layer));
    return most;
  }
  void copy(float* to, const float* from, std::size_t count, cudaMemcpyKind kind) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, count * sizeof(float), kind, stream_.get()));
  }

  const Workload workload_;
  const Precision precision_;
  const Network network_;
  const KernelRules rules_;
  const Tiling tiling_;
  const std::int64_t batches_;
  Schedule schedule_;
  const jit::ReadyKernel kernel_;
  int shared_bytes_ = 0;  // of a thread block

  Stream stream_;
  Event begin_, end_;
  std::vector<LayerMemory> layers_;
  DeviceBuffer<unsigned char> features_;  // [batches * batch, pitch] values
  DeviceBuffer<std::int32_t> labels_;
  DeviceBuffer<float> targets_, outputs_, loss_sums_;
  DeviceBuffer<Task> tasks_;
  DeviceBuffer<std::int32_t> first_task_;
  DeviceBuffer<std::uint32_t> counters_;
  DeviceBuffer<rules::UpdateFactors> factors_;
  KeptLosses losses_;
  HostReport report_;
  DeviceBuffer<std::uint64_t> least_report_{1};
  Arguments arguments_{};
  int parity_ = 0;  // which copies of weights and activations the next step reads
  LaunchPace pace_{kFirstLaunch, kMostSteps};
};

}  // namespace

std::optional<std::string> tiled_unavailable(int device) {
  if (auto reason = device_missing(device)) return reason;
  const DeviceInfo info = device_info(device);
  return tiled_too_old(info.compute_major, info.compute_minor);
}
std::optional<std::string> tiled_too_old(int compute_major, int compute_minor) {
  if (compute_major >= 8) return std::nullopt;
  return "compute capability " + std::to_string(compute_major) + "." + std::to_string(compute_minor) +
         ", needs 8.0 or newer";
}

bool tiled_is_portable(Precision precision, int device) {
  const DeviceInfo info = device_info(device);
  return tiled_is_portable(precision, info.compute_major, info.compute_minor);
}
bool tiled_is_portable(Precision precision, int compute_major, int compute_minor) {
  const bool has_wgmma = compute_major == 9 && compute_minor == 0;  // it is of this one generation
  return !is_sixteen_bits(precision) || !has_wgmma;
}

std::unique_ptr<TiledTrainer> make_tiled_trainer(const Workload& workload, Precision precision,
                                                 const DatasetView& data, const Parameters& initial,
                                                 int device, const TiledOptions& options,
                                                 const MakeKernel& make) {
  validate(workload);
  if (const auto reason = tiled_unavailable(device)) throw UnsupportedError("cuda-tiled: " + *reason);
  const bool portable =
      options.portable || is_portable(options.tiling) || tiled_is_portable(precision, device);
  if (options.tiling && options.tiling->portable != portable)
    throw UnsupportedError("cuda-tiled: these tiles are for fp16 and bf16 on compute capability 9.0");
  require_data_for(workload, data, "cuda-tiled");
  if (data.batches(workload.batch_size) > std::numeric_limits<std::int32_t>::max())
    throw UnsupportedError("cuda-tiled: more than 2^31 - 1 batches");
  use_device(device);
  StepPlan plan =
      plan_step(workload, precision, portable, device_attribute(cudaDevAttrMultiProcessorCount, device),
                options.tiling, options.slabs_of_part);
  plan.kernel.rules.timed = options.timed;
  jit::ReadyKernel kernel = make(plan.kernel);
  return std::make_unique<Tiled>(workload, precision, data, initial, std::move(plan), std::move(kernel),
                                 options);
}

}  // namespace headroom
