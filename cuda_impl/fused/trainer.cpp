// The fused kernels behind the trainer contract: buffers, which thread block sums what, and the captured step.
#include "fused/trainer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "device/check.h"
#include "device/copies.h"
#include "device/device.h"
#include "fused/kernels.h"
#include "machine/launch_config.h"
#include "trainers/graph_trainer.h"
#include "trainers/samples.h"

namespace headroom {
namespace {

using namespace fused;

// A graph's first step begins on an idle device, 2 us and more later than those whose launch overlaps the step before. So graphs are
// long, and there is one of every power of two up to this for what is left over.
constexpr int kMostStepsOfGraph = 256;
/// The part of the L2 that inputs may take which the gradient kernel is to find there, beside what a step writes: 12 MB of an H200's.
constexpr std::int64_t kKeptInputsShare = 5;

Limits limits_of(int device) {
  return {.sm_count = device_attribute(cudaDevAttrMultiProcessorCount, device),
          .shared_bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
}

/// Thread blocks, or clusters, that each take tiles. Throws UnsupportedError if the device holds none.
int workers(const Plan& plan, const BlockShape& shape, const void* kernel, int sm_count) {
  allow_shared_bytes(kernel, shape.shared_bytes);
  if (shape.cluster > 1) {
    const LaunchConfig launch(shape.cluster, shape.threads, shape.shared_bytes, nullptr, shape.cluster);
    int fitting = 0;
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&fitting, kernel, &launch.config));
    if (fitting < 1)
      throw UnsupportedError("cuda-fused: the device, with " + std::to_string(sm_count) +
                             " multiprocessors, holds no cluster of " + std::to_string(shape.cluster) +
                             " thread blocks with all shared memory of a multiprocessor each");
    return std::min(fitting, plan.tiles);
  }
  const int at_most = plan.form == Form::kWarps      ? plan.tiles * kPiecesPerTile
                      : plan.form == Form::kPipeline ? plan.tiles
                                                     : (plan.tiles + 1) / 2;
  return std::min(sm_count, at_most);
}

/// The weight gradients of one layer that a thread block sums: up to two panels of outputs by as many of inputs and the
/// narrow one.
struct GradientItem {
  int layer, output_panel, output_columns, input_panel, input_columns;  // columns of whole panels
  bool with_narrow, with_bias;
  /// Of a tile: columns that are loaded, which is what takes the time.
  int cost() const { return output_columns + input_columns + (with_narrow ? kNarrowColumns : 0); }
  int loaded_bytes() const { return cost() * kTileRows * 2; }
  // A stage of the ring; see GradientBlock.
  int inputs_at() const { return output_columns * kTileRows * 2; }
  int ones_at() const { return inputs_at() + input_columns * kTileRows * 2; }
  int narrow_at() const { return ones_at() + (with_bias ? kTilePanelBytes : 0); }
  int stage_bytes() const { return narrow_at() + (with_narrow ? kNarrowTileBytes : 0); }
  int warpgroups() const { return output_columns > kPanelColumns ? 2 : 1; }
  int weight_rows() const { return input_columns / 2; }
  int narrow_rows() const { return with_narrow ? kNarrowColumns / 2 : 0; }
  int bias_rows() const { return with_bias ? 2 : 0; }
  int rows() const { return weight_rows() + narrow_rows() + bias_rows(); }
};

std::vector<GradientItem> gradient_items(const Plan& plan) {
  std::vector<GradientItem> items;
  const int layers = sums_outputs(plan) ? plan.hidden : plan.hidden + 1;
  for (int layer = 0; layer < layers; ++layer) {
    const int outputs = layer == plan.hidden ? plan.class_panels : plan.width_panels;
    const int inputs = layer == 0 ? plan.input_panels : plan.width_panels;
    for (int output = 0; output < outputs; output += 2) {
      const int columns = std::min(2, outputs - output) * kPanelColumns;
      for (int input = 0; input < inputs; input += 2)
        items.push_back(
            {layer, output, columns, input, std::min(2, inputs - input) * kPanelColumns, false, false});
      if (inputs == 0) items.push_back({layer, output, columns, 0, 0, false, false});
      items.back().with_narrow = layer == 0 && has_narrow_panel(plan);
      // By another than the narrow panel, whose products come on top of those of whole ones, but by what has as few columns.
      (items.back().with_narrow && inputs > 2 ? items.end()[-2] : items.back()).with_bias = true;
    }
  }
  return items;
}

/// Items that are summed by thread blocks side by side, one or two of them.
struct GradientGroup {
  int first, count;
  /// What takes the longest: the last, as it is the one that may have the narrow panel.
  const GradientItem& widest(const std::vector<GradientItem>& items) const {
    return items[static_cast<std::size_t>(first + count - 1)];
  }
};

/// Two items next to each other of the same outputs and as many panels of inputs are a group.
std::vector<GradientGroup> gradient_groups(const std::vector<GradientItem>& items) {
  std::vector<GradientGroup> groups;
  const int count = static_cast<int>(items.size());
  for (int i = 0; i < count; i += groups.back().count) {
    const GradientItem& item = items[static_cast<std::size_t>(i)];
    const auto is_mate = [&](const GradientItem& next) {
      return next.layer == item.layer && next.output_panel == item.output_panel &&
             next.input_columns == item.input_columns;
    };
    groups.push_back(
        {i, i + 1 < count && is_mate(items[static_cast<std::size_t>(i) + 1]) ? kGradientPair : 1});
  }
  // Pairs first: they begin at even numbers, as clusters do.
  std::stable_sort(groups.begin(), groups.end(),
                   [](const GradientGroup& a, const GradientGroup& b) { return a.count > b.count; });
  return groups;
}

/// Later thread blocks of the gradient kernel begin on the SMs where the chain ends last, by as much as it takes to load so many columns
/// of a tile.
constexpr int kLateColumns = 300;

/// How many times each group's tiles are shared out. What takes the longest gets more shares, so that each has a tile
/// less, as long as there are thread blocks.
std::vector<int> split_tiles(const std::vector<GradientItem>& items, const std::vector<GradientGroup>& groups,
                             int tiles, int blocks) {
  std::vector<int> splits(groups.size(), 1);
  // The update is fastest with few partial sums; where most thread blocks have work all the same, it gets no more.
  const int count = static_cast<int>(items.size());
  const int at_most = count * kFewSplits > blocks - blocks / 8 ? kFewSplits : blocks;
  const auto tiles_each = [&](std::size_t i) { return (tiles + splits[i] - 1) / splits[i]; };
  const auto begins_late = [&](std::size_t i) {
    int before = 0;
    for (std::size_t j = 0; j < i; ++j) before += groups[j].count * splits[j];
    return before >= blocks / 2;
  };
  const auto longest = [&](std::size_t i) {
    return tiles_each(i) * groups[i].widest(items).cost() + (begins_late(i) ? kLateColumns : 0);
  };
  for (int left = blocks - count;;) {
    std::size_t most = 0;
    for (std::size_t i = 1; i < groups.size(); ++i)
      if (longest(i) >= longest(most)) most = i;  // of equals the last, which begins last
    const int fewer = tiles_each(most) - 1;
    if (fewer == 0) return splits;
    const int more = (tiles + fewer - 1) / fewer - splits[most];
    left -= more * groups[most].count;
    if (left < 0 || splits[most] + more > at_most) return splits;
    splits[most] += more;
  }
}

/// So many steps have factors of their own: 1 - beta^t is 1 behind them, to the last bit of fp32.
constexpr std::int64_t kMostFactors = std::int64_t{1} << 20;
std::int64_t steps_with_factors(const Optimizer& optimizer) {
  if (optimizer.kind == Optimizer::Kind::kSgd) return 1;
  const double largest = std::max(optimizer.beta1, optimizer.beta2);
  return largest == 0 ? 1
                      : static_cast<std::int64_t>(std::min(1e9, std::log(0x1p-30) / std::log(largest))) + 1;
}

class FusedTrainer : public GraphTrainer {
 public:
  FusedTrainer(const Workload& workload, Precision precision, const DatasetView& data,
               const Parameters& initial, int device, const Limits& limits, const MakeKernel& make)
      : GraphTrainer(workload, "cuda-fused"),
        precision_(precision),
        plan_(make_plan(workload, precision, limits)),
        batches_(data.batches(workload.batch_size)),
        shape_(block_shape(plan_, limits.shared_bytes)),
        kernel_(make(plan_)),
        blocks_(workers(plan_, shape_, kernel_.function, limits.sm_count)) {
    allocate(limits.sm_count);
    upload(data);
    set_arguments(workload, limits, device_attribute(cudaDevAttrL2CacheSize, device));
    set_state(State::initial(initial, plan_.slots));
    std::vector<int> steps_of_a_graph;
    for (int steps = kMostStepsOfGraph; steps > 0; steps /= 2) steps_of_a_graph.push_back(steps);
    capture_steps(steps_of_a_graph);
    stream_.synchronize();
  }

  Parameters parameters() override {
    Parameters result(widths_);
    parameters_.copy_to(result.flat());
    return result;
  }

  std::vector<Parameters> slots() override {
    std::vector<Parameters> result;
    for (const DeviceBuffer<float>& slot : slots_) slot.copy_to(result.emplace_back(widths_).flat());
    return result;
  }
  void set_slots(const std::vector<Parameters>& slots) override {
    require_slots(slots, widths_, plan_.slots);
    for (std::size_t slot = 0; slot < slots.size(); ++slot) slots_[slot].copy_from(slots[slot].flat());
  }

  void set_parameters(const Parameters& parameters) override {
    require_widths_of(parameters);
    parameters_.copy_from(parameters.flat());
    make_image(precision_, plan_, parameters_.data(), image_.data(), stream_.get());
    stream_.synchronize();
  }

  std::optional<SetupCache> setup_cache() override {
    return kernel_.was_kept ? SetupCache::kWarm : SetupCache::kCold;
  }
  std::string note() override { return way_of_tiles() + "; " + kernel_.note; }

 private:
  std::string way_of_tiles() const {
    if (plan_.form == Form::kCluster) return "an SM a hidden layer, " + std::to_string(blocks_) + " clusters";
    if (plan_.form == Form::kPair) return "an SM two hidden layers, " + std::to_string(blocks_) + " pairs";
    if (plan_.form == Form::kWarps) return "a warp takes its rows through all layers";
    if (plan_.form == Form::kApart) return "tiles apart from sums of weight gradients";
    if (plan_.form == Form::kPipeline) return "a warpgroup a hidden layer";
    return "width " + std::to_string(plan_.width) + ", weight gradients through device memory";
  }
  template <class T>
  static DeviceBuffer<T> copied(const std::vector<T>& values) {
    DeviceBuffer<T> buffer(static_cast<std::int64_t>(values.size()));
    buffer.copy_from(values);
    return buffer;
  }

  void allocate(int sm_count) {
    parameters_ = DeviceBuffer<float>(plan_.parameters);
    for (int slot = 0; slot < plan_.slots; ++slot) slots_.push_back(zeros<float>(plan_.parameters));
    trained_step_ = zeros<std::int64_t>(1);
    image_ = zeros<unsigned char>(plan_.image_bytes);
    block_losses_ = zeros<float>(blocks_);
    state_ = zeros<StepState>(1);
    inputs_ = DeviceBuffer<unsigned char>(batches_ * batch_bytes());
    if (plan_.form != Form::kGeneral) return plan_sums();
    const std::int64_t layer_bytes = std::int64_t{plan_.tiles} * plan_.width_panels * kTilePanelBytes;
    activations_ = zeros<unsigned char>(plan_.hidden * layer_bytes);
    gradients_ = zeros<unsigned char>(plan_.hidden * layer_bytes);
    if (!sums_outputs(plan_))
      output_gradients_ =
          zeros<unsigned char>(std::int64_t{plan_.tiles} * plan_.class_panels * kTilePanelBytes);
    plan_gradients(sm_count, layer_bytes);
  }

  /// Every thread block sums everything; how the update finds it. Where warps keep all sums, they lie as their lanes hold them.
  void plan_sums() {
    const int hidden = plan_.hidden, halves = plan_.width / 64;
    const std::int64_t stride = plan_.form == Form::kWarps ? warp_partial_rows(hidden) * kWarpgroup
                                : in_clusters(plan_.form)  ? cluster_partial_floats(hidden)
                                                           : pipeline_partial_floats(hidden);
    std::vector<Segment> segments;
    std::int64_t next_row = 0;
    const auto add = [&](Kind kind, int layer, int weight_rows, int bias_rows = 0, int half = 0) {
      segments.push_back({.kind = kind,
                          .layer = layer,
                          .first_output = kind == Kind::kQuads ? 64 * half : 0,
                          .first_input = kind == Kind::kTurned ? 64 * half : 0,
                          .weight_rows = weight_rows,
                          .bias_rows = bias_rows,
                          .splits = blocks_,
                          .partial = next_row * kWarpgroup,
                          .split_stride = stride});
      next_row += weight_rows + bias_rows;
    };
    if (plan_.form == Form::kWarps) {
      for (int layer = 0; layer < hidden; ++layer) add(Kind::kLanes, layer, 8);
      add(Kind::kLanes, hidden, 4);
      add(Kind::kLaneBiases, 0, 2);
      add(Kind::kLaneOutputBias, hidden, 1);
    } else {
      for (int layer = 0; layer < hidden; ++layer)
        for (int half = 0; half < halves; ++half) add(Kind::kQuads, layer, 32 * halves, 2, half);
      for (int half = 0; half < halves; ++half) add(Kind::kTurned, hidden, 8, 0, half);
      add(Kind::kOutputBias, hidden, 0, 1);
    }
    keep_segments(segments);
    partials_ = DeviceBuffer<float>(blocks_ * stride);
    if (plan_.form == Form::kPair)
      kept_ = DeviceBuffer<unsigned char>(std::int64_t{blocks_} * kKeptTiles * kKeptTileBytes);
  }

  /// The update's tables.
  void keep_segments(const std::vector<Segment>& segments) {
    int most_splits = 0;  // but for what the chain sums of the last layer
    for (const Segment& segment : segments)
      if (plan_.form != Form::kGeneral || segment.kind == Kind::kQuads)
        most_splits = std::max(most_splits, segment.splits);
    // With slots there are two forms of the update only, for few and for many partial sums.
    const UpdateShare share =
        update_share(plan_.slots > 0 && most_splits > kFewSplits ? kPairSplits + 1 : most_splits);
    std::vector<UpdateRows> rows;
    std::vector<UpdatePlaces> places;
    const auto add = [&](const Segment& segment, int begin, int end) {
      const int own_range = kWarpgroup / share.parts;
      const int rows_at_once = segment.splits > kFewSplits ? 1 : share.rows;
      for (int row = begin; row < end; row += rows_at_once) {
        const int count = std::min(rows_at_once, end - row);
        rows.push_back({.partial = static_cast<std::int32_t>(segment.partial + row * kWarpgroup),
                        .split_stride = static_cast<std::int32_t>(segment.split_stride),
                        .splits = segment.splits,
                        .count = count});
        for (int part = 0; part < share.parts; ++part)
          for (int i = 0; i < share.rows; ++i)
            for (int column = 0; column < own_range; ++column)
              places.push_back(places_of(
                  i < count ? target_of(plan_, segment, row + i, part * own_range + column) : Target{}));
      }
    };
    for (const Segment& segment : segments) {
      add(segment, 0, segment.weight_rows);
      add(segment, segment.weight_rows, segment.weight_rows + segment.bias_rows);
    }
    update_.share = share;
    update_rows_ = copied(rows);
    update_places_ = copied(places);
  }

  UpdatePlaces places_of(const Target& target) const {
    UpdatePlaces places{-1, {-1, -1}};
    if (target.layer < 0) return places;
    places.parameter = static_cast<int>(parameter_index(plan_, target));
    if (target.in < 0) {
      places.parameter |= kBiasFlag;
      places.bytes[0] = bias_place(plan_, target.layer, target.out);
    } else {
      int count = 0;
      for_each_place(plan_, target.layer, target.out, target.in,
                     [&](int byte) { places.bytes[count++] = byte; });
    }
    return places;
  }

  /// What a thread block sums of `item` in all tiles, but for where its sums go.
  GradientBlock block_of(const GradientItem& item, std::int64_t layer_bytes) const {
    const bool of_inputs = item.layer == 0, of_outputs = item.layer == plan_.hidden;
    const std::int64_t width_bytes = plan_.width_panels * kTilePanelBytes;
    return {
        .outputs = (of_outputs ? output_gradients_.data() : gradients_.data() + item.layer * layer_bytes) +
                   item.output_panel * kTilePanelBytes,
        .inputs = (of_inputs ? inputs_.data() : activations_.data() + (item.layer - 1) * layer_bytes) +
                  item.input_panel * kTilePanelBytes,
        .output_tile_bytes = of_outputs ? plan_.class_panels * kTilePanelBytes : width_bytes,
        .input_tile_bytes = of_inputs ? input_tile_bytes(plan_) : width_bytes,
        .output_columns = item.output_columns,
        .input_columns = item.input_columns,
        .with_narrow = item.with_narrow,
        .with_bias = item.with_bias,
        .of_batch = of_inputs,
        .inputs_at = item.inputs_at(),
        .ones_at = item.ones_at(),
        .narrow_at = item.narrow_at(),
        .stage_bytes = 0,
        .stages = 0,
        .same_outputs = false,
        .first_tile = 0,
        .end_tile = 0,
        .partial = 0};
  }

  /// Which thread block sums which gradients over which tiles, and how the update finds them.
  void plan_gradients(int sm_count, std::int64_t layer_bytes) {
    const std::vector<GradientItem> items = gradient_items(plan_);
    const std::vector<GradientGroup> groups = gradient_groups(items);
    const std::vector<int> group_splits = split_tiles(items, groups, plan_.tiles, sm_count);
    std::vector<GradientBlock> blocks;
    std::vector<Segment> segments;
    std::int64_t floats = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const int splits = group_splits[g];
      const std::int64_t group_begin = floats;
      const auto item_at = [&](int i) -> const GradientItem& {
        return items[static_cast<std::size_t>(groups[g].first + i)];
      };
      int stage_bytes = 0, loaded_bytes = 0;
      for (int i = 0; i < groups[g].count; ++i) {
        stage_bytes = std::max(stage_bytes, item_at(i).stage_bytes());
        loaded_bytes = std::max(loaded_bytes, item_at(i).loaded_bytes());
      }
      const int stages = std::min(kGradientLoadedBytes / loaded_bytes, kGradientRingBytes / stage_bytes);
      const auto block_floats = [](const GradientItem& item) {
        return std::int64_t{item.warpgroups()} * item.rows() * kWarpgroup;
      };
      for (int i = 0; i < groups[g].count; ++i) {
        const GradientItem& item = item_at(i);
        for (int w = 0; w < item.warpgroups(); ++w) {
          Segment segment{.kind = Kind::kQuads,
                          .layer = item.layer,
                          .first_output = (item.output_panel + w) * kPanelColumns,
                          .first_input = item.input_panel * kPanelColumns,
                          .weight_rows = item.weight_rows(),
                          .bias_rows = item.with_narrow ? 0 : item.bias_rows(),
                          .splits = splits,
                          .partial = floats + w * item.rows() * kWarpgroup,
                          .split_stride = block_floats(item)};
          segments.push_back(segment);
          if (!item.with_narrow) continue;
          segment.first_input = plan_.input_panels * kPanelColumns;
          segment.partial += item.weight_rows() * kWarpgroup;
          segment.weight_rows = item.narrow_rows();
          segment.bias_rows = item.bias_rows();
          segments.push_back(segment);
        }
        floats += splits * block_floats(item);
      }
      for (int split = 0; split < splits; ++split) {
        std::int64_t item_begin = group_begin;
        for (int i = 0; i < groups[g].count; ++i) {
          const GradientItem& item = item_at(i);
          GradientBlock block = block_of(item, layer_bytes);
          block.stage_bytes = stage_bytes;
          block.stages = stages;
          block.same_outputs = groups[g].count == kGradientPair;
          block.first_tile = static_cast<std::int32_t>(std::int64_t{plan_.tiles} * split / splits);
          block.end_tile = static_cast<std::int32_t>(std::int64_t{plan_.tiles} * (split + 1) / splits);
          block.partial = item_begin + split * block_floats(item);
          blocks.push_back(block);
          item_begin += splits * block_floats(item);
        }
      }
    }
    if (blocks.size() % kGradientPair != 0) {
      // Half of a pair with nothing to do: no tiles, and its zeros go where nobody looks.
      GradientBlock idle = blocks.back();
      idle.end_tile = idle.first_tile;
      idle.partial = floats;
      floats += segments.back().split_stride;
      blocks.push_back(idle);
    }
    output_partials_begin_ = floats;
    if (sums_outputs(plan_)) floats += add_output_segments(segments, floats);
    gradient_blocks_ = copied(blocks);
    keep_segments(segments);
    partials_ = DeviceBuffer<float>(floats);
  }

  /// What the chain's blocks sum of the last layer. Returns how many floats it is, which begin at `begin`.
  std::int64_t add_output_segments(std::vector<Segment>& segments, std::int64_t begin) const {
    const std::int64_t stride = output_partial_floats(plan_.width);
    Segment segment{.kind = Kind::kTurned,
                    .layer = plan_.hidden,
                    .first_output = 0,
                    .first_input = 0,
                    .weight_rows = 8,
                    .bias_rows = 0,
                    .splits = blocks_,
                    .partial = begin,
                    .split_stride = stride};
    for (int panel = 0; panel < plan_.width_panels; ++panel, segment.partial += 8 * kWarpgroup) {
      segment.first_input = panel * kPanelColumns;
      segments.push_back(segment);
    }
    segment.kind = Kind::kOutputBias;
    segment.weight_rows = 0;
    segment.bias_rows = 1;
    segments.push_back(segment);
    return blocks_ * stride;
  }

  void upload(const DatasetView& data) {
    const std::int64_t samples = batches_ * plan_.batch;
    if (plan_.loss == static_cast<std::int32_t>(Loss::kCrossEntropy)) {
      labels_ = labels_of(data, samples);
    } else {
      DeviceBuffer<float> targets(samples * plan_.classes);
      targets.copy_from({data.targets, static_cast<std::size_t>(targets.size())});
      targets_ = DeviceBuffer<float>(samples * kTargetStride);
      pack_targets(targets.data(), plan_.classes, samples, targets_.data(), stream_.get());
      stream_.synchronize();
    }
    for_each_staged_batches(data, plan_.batch, batches_, stream_,
                            [&](const float* features, std::int64_t count, std::int64_t first) {
                              pack_inputs(precision_, plan_, features, count,
                                          inputs_.data() + first * batch_bytes(), stream_.get());
                            });
  }
  std::int64_t batch_bytes() const { return std::int64_t{plan_.tiles} * input_tile_bytes(plan_); }

  void set_arguments(const Workload& workload, const Limits& limits, std::int64_t l2_bytes) {
    const double scale = loss_scale(precision_, plan_.batch);
    chain_.plan = plan_;
    chain_.layout = chain_layout(plan_, limits.shared_bytes);
    chain_.image = image_.data();
    chain_.inputs = inputs_.data();
    chain_.labels = labels_.data();
    chain_.state = state_.data();
    chain_.activations = activations_.data();
    chain_.gradients = gradients_.data();
    chain_.output_gradients = output_gradients_.data();
    chain_.output_partials = partials_.data() + output_partials_begin_;
    chain_.block_losses = block_losses_.data();
    chain_.passing_panels = static_cast<std::int32_t>(std::max<std::int64_t>(
        0, plan_.input_panels - l2_bytes / kKeptInputsShare / (std::int64_t{plan_.tiles} * kTilePanelBytes)));
    const double mean_of =
        plan_.batch * (workload.loss == Loss::kCrossEntropy ? 1.0 : static_cast<double>(plan_.classes));
    chain_.gradient_scale = static_cast<float>(scale / mean_of);
    pipeline_ = {.plan = plan_,
                 .image = image_.data(),
                 .inputs = inputs_.data(),
                 .labels = labels_.data(),
                 .state = state_.data(),
                 .partials = partials_.data(),
                 .block_losses = block_losses_.data(),
                 .gradient_scale = chain_.gradient_scale,
                 .all_tiles = static_cast<std::int32_t>(batches_ * plan_.tiles),
                 .targets = targets_.data(),
                 .trained_step = trained_step_.data(),
                 .kept = kept_.data()};
    update_.plan = plan_;
    update_.rows = update_rows_.data();
    update_.places = update_places_.data();
    update_.row_blocks = static_cast<std::int32_t>(update_rows_.size());
    update_.partials = partials_.data();
    update_.parameters = parameters_.data();
    update_.image = image_.data();
    update_.update_factor = -static_cast<float>(workload.optimizer.learning_rate) / static_cast<float>(scale);
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) update_.slots[slot] = slots_[slot].data();
    if (plan_.slots > 0) {
      std::vector<rules::UpdateFactors> factors;
      for (std::int64_t step = 0; step < steps_with_factors(workload.optimizer); ++step)
        factors.push_back(rules::update_factors(workload.optimizer, step));
      factors_ = copied(factors);
      update_.factors = factors_.data();
      update_.factor_count = factors_.size();
    }
    update_.trained_step = trained_step_.data();
    update_.inverse_loss_scale = static_cast<float>(1 / scale);
    update_.mean_of = static_cast<float>(mean_of);
    update_.block_losses = block_losses_.data();
    update_.loss_blocks = blocks_;
    update_.losses = losses_.data();
    update_.loss_slots = kKeptLosses;
    update_.batches = batches_;
    update_.state = state_.data();
  }

  void queue_step() override {
    const bool is_general = plan_.form == Form::kGeneral;
    void* arguments[] = {is_general ? static_cast<void*>(&chain_) : &pipeline_};
    const LaunchConfig launch(blocks_ * shape_.cluster, shape_.threads, shape_.shared_bytes, stream_.get(),
                              shape_.cluster);
    CUDA_CHECK(cudaLaunchKernelExC(&launch.config, kernel_.function, arguments));
    if (is_general)
      launch_gradients(precision_, gradient_blocks_.data(), static_cast<int>(gradient_blocks_.size()),
                       batch_bytes(), state_.data(), partials_.data(), stream_.get());
    launch_update(precision_, update_, stream_.get());
  }

  void set_step(std::int64_t step) override { fused::set_step(state_.data(), step, batches_, stream_.get()); }
  const void* counter() const override { return &state_.data()->step; }

  const Precision precision_;
  const Plan plan_;
  const std::int64_t batches_;
  const BlockShape shape_;
  const jit::ReadyKernel kernel_;  // that takes tiles
  const int blocks_;               // that do so, or clusters

  DeviceBuffer<float> parameters_;
  DeviceBuffer<unsigned char> image_;  // what products read of them; plan.h
  DeviceBuffer<unsigned char> inputs_, activations_, gradients_, output_gradients_;  // in panels; kernels.h
  DeviceBuffer<unsigned char> kept_;
  DeviceBuffer<std::int32_t> labels_;
  DeviceBuffer<float> targets_;
  std::vector<DeviceBuffer<float>> slots_;
  DeviceBuffer<rules::UpdateFactors> factors_;
  DeviceBuffer<std::int64_t> trained_step_;
  DeviceBuffer<GradientBlock> gradient_blocks_;
  DeviceBuffer<UpdateRows> update_rows_;
  DeviceBuffer<UpdatePlaces> update_places_;
  DeviceBuffer<float> partials_, block_losses_;
  std::int64_t output_partials_begin_ = 0;
  DeviceBuffer<StepState> state_;

  ChainArguments chain_{};
  PipelineArguments pipeline_{};
  UpdateArguments update_{};
};

}  // namespace

std::optional<std::string> fused_unavailable(int device) {
  if (auto reason = device_missing(device)) return reason;
  const DeviceInfo info = device_info(device);
  // wgmma is of this one generation; the kernels are machine code for it.
  if (info.compute_major != 9 || info.compute_minor != 0)
    return "compute capability " + std::to_string(info.compute_major) + "." +
           std::to_string(info.compute_minor) + ", needs 9.0";
  return std::nullopt;
}

std::optional<std::string> fused_refusal(const Workload& workload, Precision precision,
                                         const Limits& limits) {
  if (auto refusal = shape_refusal(workload, precision)) return refusal;
  if (steps_with_factors(workload.optimizer) > kMostFactors)
    return "a beta whose corrections do not end within " + std::to_string(kMostFactors) + " steps";
  const Plan plan = make_plan(workload, precision, limits);
  if (plan.form != Form::kGeneral) {
    if (limits.shared_bytes >= kFormBytes) return std::nullopt;
    return "up to " + std::to_string(kFormBytes) +
           " bytes of shared memory in a thread block; the device has " + std::to_string(limits.shared_bytes);
  }
  const ChainLayout layout = chain_layout(plan, limits.shared_bytes);
  if (layout.stages < 2)
    return "'" + workload.name + "' needs " + std::to_string(chain_layout(plan, 1 << 20).ring_begin) +
           " bytes of shared memory for weights and tiles, which leaves no room for a ring of inputs in " +
           std::to_string(limits.shared_bytes);
  return std::nullopt;
}

std::unique_ptr<Trainer> make_fused_trainer(const Workload& workload, Precision precision,
                                            const DatasetView& data, const Parameters& initial, int device,
                                            const MakeKernel& make) {
  validate(workload);
  if (const auto reason = fused_unavailable(device)) throw UnsupportedError("cuda-fused: " + *reason);
  const Limits limits = limits_of(device);
  if (const auto refusal = fused_refusal(workload, precision, limits))
    throw UnsupportedError("cuda-fused: " + *refusal);
  require_data_for(workload, data, "cuda-fused");
  use_device(device);
  return std::make_unique<FusedTrainer>(workload, precision, data, initial, device, limits, make);
}

}  // namespace headroom
