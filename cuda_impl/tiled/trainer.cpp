// The tiled kernels behind the trainer contract: buffers, tensor maps, the lists, and training cut into launches.
//
// A launch trains many steps. Its counters begin at zero, so a launch may be of any steps; what goes on from one launch to the next
// is which of the two copies of weights and activations the next step reads. With several ranks counters go on, too (ranks.cuh).
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
#include "device/peer_access.h"
#include "device/step_watch.h"
#include "device/stream.h"
#include "machine/tensor_map.h"
#include "tiled/arguments.h"
#include "tiled/kernels.h"
#include "tiled/schedule.h"
#include "tiled/waits.h"
#include "trainers/ranked_trainer.h"
#include "trainers/samples.h"
#include "trainers/step_factors.h"

namespace headroom {
namespace {

using namespace tiled;

constexpr std::int64_t kFirstLaunch = 64;  // steps, before a launch was timed
constexpr std::int64_t kMostSteps = 4096;
constexpr int kBiasValues = 128;  // biases are read by tiles, which have 64 or 128 rows or columns

static_assert(kMostTiledRanks == kMostRanks);
constexpr std::int64_t kLine = 128;  ///< bytes of a line of the L2

/// The kernel for every GPU has plain multiply-adds and mma.sync.
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

/// Of the ranks that train together, which one.
struct RankOf {
  int rank = 0, ranks = 1;
  int on_device = 1;  ///< of them on this one's device
};

/// Buffers of one layer. Factors are bytes: values of 16 or 32 bits.
struct LayerMemory {
  DeviceBuffer<unsigned char> weights, input, gradient;  // input: of all but the first layer
  DeviceBuffer<unsigned char> weights_turned, input_turned, gradient_turned;  // where turns_factors()
  DeviceBuffer<float> bias_sums;                                              // there too
  DeviceBuffer<float> masters, bias;  // masters: none where the weights are the masters
  std::vector<DeviceBuffer<float>> slots, bias_slots;
  DeviceBuffer<std::uint32_t> kept;
  DeviceBuffer<float4> part_sums;
};

class Tiled : public TiledTrainer {
 public:
  Tiled(const Workload& workload, Precision precision, const DatasetView& data, const Parameters& initial,
        StepPlan plan, jit::ReadyKernel kernel, const TiledOptions& options, const RankOf& of = {})
      : of_(of),
        is_absent_(options.absent_rank == of.rank),
        workload_(workload),
        precision_(precision),
        network_(std::move(plan.network)),
        rules_(plan.kernel.rules),
        tiling_(plan.kernel.tiling),
        batches_(data.batches(network_.joined())),
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
    // A launch that loaded this kernel might wait for another rank's.
    set_step_factors(workload_.optimizer, 0, 1, factors_.data(), stream_.get());
    set_state(State::initial(initial, workload.optimizer.slots()));
  }

  /// Before the first launch, once all ranks are there: where this one writes in the memory of the others.
  void find_peers(const std::vector<Tiled*>& ranks, bool is_silent) {
    RankArguments& to = arguments_.ranks;
    for (Tiled* peer : ranks) {
      if (peer == this) continue;
      const int number = to.peers++;
      for (int layer = 0; layer < network_.layers(); ++layer) {
        const LayerMemory& memory = peer->layers_[static_cast<std::size_t>(layer)];
        if (layer > 0) to.inputs[layer].values[number] = own_rows(memory.input, network_.in(layer));
        to.gradients[layer].values[number] = own_rows(memory.gradient, network_.out(layer));
      }
      to.counters[number] = peer->counters_.data();
    }
    if (!is_silent) return;
    unheard_ = zeros<std::uint32_t>(counters_.size());
    for (int number = 0; number < to.peers; ++number) to.counters[number] = unheard_.data();
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
  bool is_ranked() const { return of_.ranks > 1; }
  /// Of the rows of all ranks the first of this one's.
  std::int64_t first_row() const { return std::int64_t{of_.rank} * network_.batch; }
  /// Where they lie in a rank's matrix [slices][rows of all ranks][columns].
  unsigned char* own_rows(const DeviceBuffer<unsigned char>& values, std::int64_t columns) const {
    return const_cast<unsigned char*>(values.data()) + first_row() * pitch_of(columns) * value_bytes();
  }
  int gradient_copies() const { return is_ranked() ? 2 : 1; }

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
  /// The wgmma kernel in tf32 reads factors along their rows only, so all lie turned as well.
  bool turns_factors() const { return tiling_.slab == kTf32Slab; }
  /// Rows of a layer's gradient whose columns are summed up by one.
  int bias_unit(int layer) const {
    return layer + 1 == network_.layers() && has_wide_outputs() ? kRowsOfLoss : kPanel;
  }
  static std::int64_t bias_values(std::int64_t out) {
    return std::int64_t{divide_up(out, kBiasValues)} * kBiasValues;
  }
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
      if (layer > 0) memory.input = factor(2, network_.joined(), in);
      memory.gradient = factor(gradient_copies(), network_.joined(), out);
      if (turns_factors()) {
        memory.weights_turned = factor(2, in, out);
        memory.input_turned = factor(layer == 0 ? batches_ : 2, in, network_.batch);
        memory.gradient_turned = factor(1, out, network_.batch);
        memory.bias_sums = zeros<float>(divide_up(network_.batch, bias_unit(layer)) * bias_values(out) +
                                        kPanel * bias_values(out));
      }
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
        memory.kept = DeviceBuffer<std::uint32_t>(values / (relu ? 32 : 4 / value_bytes()));
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
    const std::int64_t batch = network_.joined(), samples = batches_ * batch, columns = data.feature_count,
                       pitch = pitch_of(columns);
    if (workload_.loss == Loss::kCrossEntropy) {
      labels_ = labels_of(data, samples);
    } else {
      targets_ = DeviceBuffer<float>(samples * workload_.outputs());
      targets_.copy_from({data.targets, static_cast<std::size_t>(targets_.size())});
    }
    features_ = factor(1, samples, columns);
    for_each_staged_batches(
        data, batch, batches_, stream_, [&](const float* features, std::int64_t count, std::int64_t first) {
          round_features(precision_, features, count * batch, columns,
                         features_.data() + first * batch * pitch * value_bytes(), pitch, stream_.get());
          if (turns_factors()) {
            const std::int64_t turned_pitch = pitch_of(batch);
            turn_features(features, count, batch, columns,
                          reinterpret_cast<float*>(layers_.front().input_turned.data()) +
                              first * columns * turned_pitch,
                          turned_pitch, stream_.get());
          }
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
    // Those of all ranks twice; where in a copy they lie is the same.
    counters_ =
        zeros<std::uint32_t>((is_ranked() ? 2 : 1) * std::int64_t{schedule_.counters} * kCounterStride);
    arguments_.ranks.counters_of_copy = schedule_.counters;
    factors_ = DeviceBuffer<rules::UpdateFactors>(kMostSteps);
  }

  /// A matrix of the rows of all ranks, where there is no more than one rank a turned copy.
  Factors batch_factors(const DeviceBuffer<unsigned char>& values, const DeviceBuffer<unsigned char>& turned,
                        std::int64_t slices, std::int64_t columns) const {
    Factors all = factors(values, turned, slices, network_.joined(), columns);
    if (is_ranked() && !tiling_.portable)
      all.plain = kept(machine::tensor_map_of_panels(element(), own_rows(values, columns), slices,
                                                     network_.batch, columns, pitch_of(columns), kPanel,
                                                     tiling_.slabs_of_stage, network_.joined()));
    return all;
  }
  machine::Element element() const {
    return precision_ == Precision::kTf32   ? machine::Element::kFp32
           : precision_ == Precision::kBf16 ? machine::Element::kBf16
                                            : machine::Element::kFp16;
  }
  static TensorMap kept(const CUtensorMap& map) {
    TensorMap words;
    static_assert(sizeof words == sizeof map);
    std::memcpy(&words, &map, sizeof words);
    return words;
  }
  Factors factors(const DeviceBuffer<unsigned char>& values, const DeviceBuffer<unsigned char>& turned,
                  std::int64_t slices, std::int64_t rows, std::int64_t columns) const {
    if (tiling_.portable) return {};
    const int slabs = tiling_.slabs_of_stage;
    const auto panels = [&](const void* data, std::int64_t lines, std::int64_t along) {
      return kept(machine::tensor_map_of_panels(element(), data, slices, lines, along, pitch_of(along),
                                                kPanel, slabs));
    };
    if (turns_factors()) return {panels(values.data(), rows, columns), panels(turned.data(), columns, rows)};
    return {panels(values.data(), rows, columns),
            kept(machine::tensor_map(element(), values.data(), slices, rows, columns, pitch_of(columns),
                                     kSlab * slabs))};
  }

  Rows rows(DeviceBuffer<unsigned char>& values, std::int64_t rows, std::int64_t columns) const {
    return {values.data(), rows * pitch_of(columns), static_cast<std::int32_t>(pitch_of(columns))};
  }
  /// This rank's of a matrix of the rows of all ranks.
  Rows batch_rows(DeviceBuffer<unsigned char>& values, std::int64_t columns) const {
    Rows own = rows(values, network_.joined(), columns);
    own.values = own_rows(values, columns);
    return own;
  }

  void set_arguments(const TiledOptions& options) {
    const int last = network_.layers() - 1;
    for (int layer = 0; layer <= last; ++layer) {
      LayerMemory& memory = layers_[static_cast<std::size_t>(layer)];
      LayerArguments& to = arguments_.layer[layer];
      const int in = network_.in(layer), out = network_.out(layer);
      to.weights = factors(memory.weights, memory.weights_turned, 2, out, in);
      to.input = layer == 0 ? batch_factors(features_, memory.input_turned, batches_, in)
                            : batch_factors(memory.input, memory.input_turned, 2, in);
      to.gradient = batch_factors(memory.gradient, memory.gradient_turned, gradient_copies(), out);
      if (turns_factors()) {
        arguments_.turned[layer] = {.weights = rows(memory.weights_turned, in, out),
                                    .input = rows(memory.input_turned, in, network_.batch),
                                    .gradient = rows(memory.gradient_turned, out, network_.batch),
                                    .bias_sums = memory.bias_sums.data(),
                                    .bias_unit = bias_unit(layer),
                                    .bias_pitch = static_cast<std::int32_t>(bias_values(out))};
      }
      to.weight_rows = rows(memory.weights, out, in);
      to.input_rows = batch_rows(layer == 0 ? features_ : memory.input, in);
      to.gradient_rows = batch_rows(memory.gradient, out);
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
    // Of this rank's first row.
    if (labels_.size() > 0) arguments_.labels = labels_.data() + first_row();
    if (targets_.size() > 0) arguments_.targets = targets_.data() + first_row() * workload_.outputs();
    arguments_.outputs_pitch = static_cast<std::int32_t>(pitch_of(workload_.outputs()));
    if (has_wide_outputs())
      outputs_ = DeviceBuffer<float>(row_tiles() * tiling_.rows() * arguments_.outputs_pitch);
    arguments_.outputs = outputs_.data();
    arguments_.output_gradient =
        reinterpret_cast<std::uint16_t*>(arguments_.layer[last].gradient_rows.values);
    arguments_.ranks.joined = network_.joined();
    arguments_.ranks.first_row = static_cast<std::int32_t>(first_row());
    arguments_.loss_parts = divide_up(network_.batch, has_wide_outputs() ? kRowsOfLoss : tiling_.group_rows);
    loss_sums_ = zeros<float>(2 * std::int64_t{arguments_.loss_parts});
    arguments_.loss_sums = loss_sums_.data();
    arguments_.losses = losses_.data();
    arguments_.loss_slots = kKeptLosses;
    arguments_.factors = factors_.data();
    const double scale = loss_scale(precision_, network_.joined());
    const double mean_of = workload_.loss == Loss::kCrossEntropy
                               ? network_.joined()
                               : static_cast<double>(network_.joined()) * workload_.outputs();
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
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    const int most = blocks * device_attribute(cudaDevAttrMultiProcessorCount, device);
    const int wanted = of_.on_device * static_cast<int>(schedule_.lists.size());
    if (wanted > most)
      throw UnsupportedError("cuda-tiled: " + std::to_string(wanted) +
                             " thread blocks must be resident at once; the device holds " +
                             std::to_string(most));
  }

  double launch_all(std::int64_t first_step, std::int64_t count) {
    try {
      mark_begin();
      const double seconds = pace_.run(
          count, [&](std::int64_t done, std::int64_t steps) { launch(first_step + done, steps); },
          [&] {
            mark_end();
            return marked_seconds();
          });
      if (pace_.worth_timing(count)) pace_.learn(seconds, count);
      return seconds;
    } catch (const CudaError&) {
      const auto reason = given_up();
      if (!reason) throw;
      throw DeviceStuckError(*reason + "; the launch was given up, with its process");
    }
  }

  void mark_begin() override { begin_.record(stream_); }
  void mark_end() override { end_.record(stream_); }
  double marked_seconds() override { return seconds_between(begin_, end_); }
  void trained(std::int64_t first_step, std::int64_t count) override { losses_.trained(first_step, count); }

  void launch(std::int64_t first_step, std::int64_t steps) override {
    if (is_absent_) return;
    if (!is_ranked())
      CUDA_CHECK(
          cudaMemsetAsync(counters_.data(), 0, static_cast<std::size_t>(counters_.bytes()), stream_.get()));
    set_step_factors(workload_.optimizer, first_step, steps, factors_.data(), stream_.get());
    arguments_.first_step = first_step;
    arguments_.steps = static_cast<std::int32_t>(steps);
    arguments_.parity = parity_;
    arguments_.ranks.steps_before = steps_before_;
    void* parameters[] = {&arguments_};
    cudaLaunchAttribute cooperative{};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(schedule_.lists.size()));
    config.blockDim = dim3(static_cast<unsigned>(threads_of(tiling_)));
    config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes_);
    config.stream = stream_.get();
    config.attrs = &cooperative;
    config.numAttrs = of_.on_device > 1 ? 0 : 1;  // a device runs one cooperative kernel at a time
    CUDA_CHECK(cudaLaunchKernelExC(&config, kernel_.function, parameters));
    parity_ = static_cast<int>((parity_ + steps) % 2);
    steps_before_ += static_cast<std::uint64_t>(steps);
  }

  std::optional<std::string> given_up() const override {
    const std::uint64_t report = report_.value();
    if (report == 0) return std::nullopt;
    bool is_of_all_ranks = false;
    std::string who = "a task";
    for (std::size_t block = 0; block < schedule_.lists.size(); ++block) {
      const std::vector<Task>& list = schedule_.lists[block];
      for (std::size_t i = 0; i < list.size(); ++i)
        if (list[i].order == order_of(report) && list[i].form != Form::kPause) {
          is_of_all_ranks = is_ranked() && (list[i].form == Form::kWeightGradient ||
                                            list[i].form == Form::kWeightGradientPart);
          who = "task " + std::to_string(i + 1) + " of " + std::to_string(list.size()) +
                " of multiprocessor " + std::to_string(block) + " (" + describe(list[i]) + ")";
        }
    }
    return "cuda-tiled: in step " + std::to_string(arguments_.first_step + step_of(report)) + " " + who +
           " waited too long for " + to_string(what_of(report)) + (is_of_all_ranks ? ", by all ranks" : "");
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
                    pitch_of(network_.in(layer)),
                    copies && turns_factors() ? memory.weights_turned.data() : nullptr,
                    pitch_of(network_.out(layer)), stream_.get());
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

  const RankOf of_;
  const bool is_absent_;
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
  DeviceBuffer<std::uint32_t> counters_, unheard_;  // unheard_: of a test
  DeviceBuffer<rules::UpdateFactors> factors_;
  KeptLosses losses_;
  HostReport report_;
  DeviceBuffer<std::uint64_t> least_report_{1};
  Arguments arguments_{};
  int parity_ = 0;                  // which copies of weights and activations the next step reads
  std::uint64_t steps_before_ = 0;  // that were launched
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

bool tiled_takes_portable(const Workload& workload, Precision precision, int compute_major, int compute_minor,
                          int multiprocessors, const TiledOptions& options) {
  const bool has_wgmma = compute_major == 9 && compute_minor == 0;  // it is of this one generation
  // The wgmma kernel in tf32 would send its turned copies as well.
  if (precision == Precision::kFp32 || !has_wgmma || (precision == Precision::kTf32 && workload.devices > 1))
    return true;
  if (options.tiling) return options.tiling->portable;
  if (options.portable) return *options.portable;
  return portable_is_faster(workload, precision, multiprocessors);
}

namespace {

/// The plan of a rank, or of the only one, by devices that have at least so many multiprocessors.
StepPlan plan_for(const Workload& workload, Precision precision, const TiledOptions& options, int device,
                  int multiprocessors) {
  if (options.multiprocessors > 0) multiprocessors = std::min(multiprocessors, options.multiprocessors);
  const DeviceInfo info = device_info(device);
  const bool portable = tiled_takes_portable(workload, precision, info.compute_major, info.compute_minor,
                                             multiprocessors, options);
  if (options.tiling && options.tiling->portable != portable)
    throw UnsupportedError("cuda-tiled: these tiles are for tensor cores of compute capability 9.0");
  StepPlan plan =
      plan_step(workload, precision, portable, multiprocessors, options.tiling, options.slabs_of_part);
  plan.kernel.rules.timed = options.timed;
  return plan;
}
void require_data(const Workload& workload, const DatasetView& data) {
  require_data_for(workload, data, "cuda-tiled");
  if (data.batches(workload.joined_batch_size()) > std::numeric_limits<std::int32_t>::max())
    throw UnsupportedError("cuda-tiled: more than 2^31 - 1 batches");
}

}  // namespace

std::unique_ptr<TiledTrainer> make_tiled_trainer(const Workload& workload, Precision precision,
                                                 const DatasetView& data, const Parameters& initial,
                                                 int device, const TiledOptions& options,
                                                 const MakeKernel& make) {
  validate(workload);
  if (workload.devices > 1)
    throw std::invalid_argument("cuda-tiled: one device for a workload of " +
                                std::to_string(workload.devices));
  if (const auto reason = tiled_unavailable(device)) throw UnsupportedError("cuda-tiled: " + *reason);
  require_data(workload, data);
  use_device(device);
  StepPlan plan = plan_for(workload, precision, options, device,
                           device_attribute(cudaDevAttrMultiProcessorCount, device));
  jit::ReadyKernel kernel = make(plan.kernel);
  return std::make_unique<Tiled>(workload, precision, data, initial, std::move(plan), std::move(kernel),
                                 options);
}

std::unique_ptr<Trainer> make_tiled_trainer(const Workload& workload, Precision precision,
                                            const DatasetView& data, const Parameters& initial,
                                            const std::vector<int>& devices, const TiledOptions& options,
                                            const MakeKernel& make) {
  validate(workload);
  const int ranks = workload.devices;
  if (devices.size() != static_cast<std::size_t>(ranks))
    throw std::invalid_argument("cuda-tiled: " + std::to_string(devices.size()) +
                                " devices for a workload of " + std::to_string(ranks));
  if (ranks == 1)
    return make_tiled_trainer(workload, precision, data, initial, devices.front(), options, make);
  if (ranks > kMostTiledRanks) throw UnsupportedError("cuda-tiled: " + trains_on_fewer(kMostTiledRanks));
  const DeviceInfo first = device_info(devices.front());
  int multiprocessors = std::numeric_limits<int>::max();
  const auto ranks_on = [&](int device) {
    return static_cast<int>(std::count(devices.begin(), devices.end(), device));
  };
  for (const int device : devices) {
    if (const auto reason = tiled_unavailable(device)) throw UnsupportedError("cuda-tiled: " + *reason);
    const DeviceInfo info = device_info(device);
    if (info.compute_major != first.compute_major || info.compute_minor != first.compute_minor)
      throw UnsupportedError("cuda-tiled: device " + std::to_string(device) +
                             " has another compute capability than device " +
                             std::to_string(devices.front()));
    // All have the same lists.
    multiprocessors = std::min(multiprocessors,
                               device_attribute(cudaDevAttrMultiProcessorCount, device) / ranks_on(device));
  }
  require_data(workload, data);
  try {
    if (!options.ranks_share_devices) {
      enable_peer_access(devices);
      require_peer_atomics(devices);
    }
  } catch (const UnsupportedError& error) {
    throw UnsupportedError(std::string("cuda-tiled: ") + error.what());
  }
  use_device(devices.front());
  const StepPlan plan = plan_for(workload, precision, options, devices.front(), multiprocessors);
  const jit::ReadyKernel kernel = make(plan.kernel);
  std::vector<RankedTrainer::Rank> all;
  std::vector<Tiled*> trainers;
  for (int rank = 0; rank < ranks; ++rank) {
    const int device = devices[static_cast<std::size_t>(rank)];
    use_device(device);
    auto trainer =
        std::make_unique<Tiled>(workload.of_a_rank(), precision, data, initial, plan, kernel, options,
                                RankOf{.rank = rank, .ranks = ranks, .on_device = ranks_on(device)});
    CUDA_CHECK(cudaDeviceSynchronize());  // its peers may write to its memory from now on
    trainers.push_back(trainer.get());
    all.push_back({.device = device, .trainer = std::move(trainer)});
  }
  for (std::size_t rank = 0; rank < trainers.size(); ++rank)
    trainers[rank]->find_peers(trainers, options.silent_rank == static_cast<int>(rank));
  return std::make_unique<RankedTrainer>(std::move(all), LaunchPace{kFirstLaunch, kMostSteps});
}

}  // namespace headroom
