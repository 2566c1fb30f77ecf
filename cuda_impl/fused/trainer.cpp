// The fused kernels behind the trainer contract: buffers, which thread block sums what, and the captured step.
#include "fused/trainer.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/host_clock.h"
#include "device/device.h"
#include "device/kept_losses.h"
#include "device/memory.h"
#include "device/stream.h"
#include "fused/kernels.h"

namespace headroom {
namespace {

using namespace fused;

constexpr int kStepsPerGraph = 8;         // hides what a graph launch costs the host
constexpr int kSharedLimit = 227 * 1024;  // of one thread block on compute capability 9.0
constexpr std::int64_t kUploadBytes = std::int64_t{64} << 20;

/// Thread blocks, or clusters, that each take tiles.
int workers(Precision precision, const Plan& plan, int device) {
  if (in_clusters(plan.form)) return std::min(fitting_clusters(precision, plan), plan.tiles);
  const int at_most = plan.form == Form::kWarps      ? plan.tiles * kPiecesPerTile
                      : plan.form == Form::kPipeline ? plan.tiles
                                                     : plan.tiles / 2;
  return std::min(device_attribute(cudaDevAttrMultiProcessorCount, device), at_most);
}

/// The weight gradients of one layer that a thread block sums: up to two panels of outputs, or the narrow one, by as many
/// of inputs.
struct GradientItem {
  int layer, output_panel, output_columns, input_panel, input_columns;
  bool with_bias;
  /// Of a tile: columns that are loaded, which is what takes the time.
  int cost() const { return output_columns + input_columns; }
  int warpgroups() const { return output_columns > kPanelColumns ? 2 : 1; }
  int weight_rows() const { return input_columns / 2; }
  int rows() const { return weight_rows() + (with_bias ? 2 : 0); }
};

std::vector<GradientItem> gradient_items(const Plan& plan) {
  std::vector<GradientItem> items;
  for (int layer = 0; layer <= plan.hidden; ++layer) {
    const int outputs = layer == plan.hidden ? plan.class_panels : plan.width_panels;
    const int inputs = layer == 0 ? plan.input_panels : plan.width_panels;
    for (int output = 0; output < outputs; output += 2) {
      const bool is_narrow = layer == plan.hidden && plan.class_rows == kNarrowColumns;
      const int columns = is_narrow ? kNarrowColumns : std::min(2, outputs - output) * kPanelColumns;
      for (int input = 0; input < inputs; input += 2)
        items.push_back({layer, output, columns, input, std::min(2, inputs - input) * kPanelColumns, false});
      if (layer == 0 && has_narrow_panel(plan))
        items.push_back({layer, output, columns, inputs, kNarrowColumns, false});
      items.back().with_bias = true;  // the last of them has the fewest columns
    }
  }
  return items;
}

/// How many thread blocks share each item's tiles. What takes the longest gets another one, as long as there are some.
std::vector<int> split_tiles(const std::vector<GradientItem>& items, int tiles, int blocks) {
  std::vector<int> splits(items.size(), 1);
  const auto longest = [&](std::size_t i) { return (tiles + splits[i] - 1) / splits[i] * items[i].cost(); };
  for (int left = blocks - static_cast<int>(items.size()); left > 0; --left) {
    std::size_t most = 0;
    for (std::size_t i = 1; i < items.size(); ++i)
      if (longest(i) > longest(most)) most = i;
    if (splits[most] == tiles) break;
    ++splits[most];
  }
  return splits;
}

class FusedTrainer : public Trainer {
 public:
  FusedTrainer(const Workload& workload, Precision precision, const DatasetView& data,
               const Parameters& initial, int device)
      : widths_(workload.widths),
        precision_(precision),
        plan_(make_plan(workload, precision)),
        batches_(data.batches(workload.batch_size)),
        blocks_(workers(precision, plan_, device)) {
    DeviceMemory::reset_peak();
    allocate(device_attribute(cudaDevAttrMultiProcessorCount, device));
    upload(data);
    set_arguments(workload);
    set_parameters(initial);
    one_step_ = Graph::capture(stream_, [&] { queue_step(); });
    many_steps_ = Graph::capture(stream_, [&] {
      for (int step = 0; step < kStepsPerGraph; ++step) queue_step();
    });
    stream_.synchronize();
  }

  Timing train(std::int64_t first_step, std::int64_t count) override {
    KeptLosses::require_steps(first_step, count);
    const HostClock clock;
    begin_.record(stream_);
    if (first_step != next_step_) set_step(state_.data(), first_step, batches_, stream_.get());
    for (std::int64_t left = count; left > 0;) {
      const bool many = left >= kStepsPerGraph;
      (many ? many_steps_ : one_step_).launch(stream_);
      left -= many ? kStepsPerGraph : 1;
    }
    end_.record(stream_);
    const double device_seconds = seconds_between(begin_, end_);
    losses_.trained(first_step, count);
    next_step_ = first_step + count;
    return clock.timing(device_seconds);
  }

  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    return losses_.read(first_step, count, stream_);
  }

  Parameters parameters() override {
    Parameters result(widths_);
    parameters_.copy_to(result.flat());
    return result;
  }

  void set_parameters(const Parameters& parameters) override {
    if (parameters.widths() != widths_) throw InputError("set_parameters: parameters of another network");
    parameters_.copy_from(parameters.flat());
    make_image(precision_, plan_, parameters_.data(), image_.data(), stream_.get());
    stream_.synchronize();
  }

  std::int64_t peak_device_bytes() override { return DeviceMemory::peak_bytes(); }

  std::string note() override {
    if (plan_.form == Form::kCluster) return "an SM a hidden layer, " + std::to_string(blocks_) + " clusters";
    if (plan_.form == Form::kPair) return "an SM two hidden layers, " + std::to_string(blocks_) + " pairs";
    if (plan_.form == Form::kWarps) return "a warp takes its rows through all layers";
    if (plan_.form == Form::kPipeline) return "a warpgroup a hidden layer";
    return "width " + std::to_string(plan_.width) + ", weight gradients through device memory";
  }

 private:
  template <class T>
  static DeviceBuffer<T> zeros(std::int64_t size) {
    DeviceBuffer<T> buffer(size);
    buffer.fill_bytes(0);
    return buffer;
  }
  template <class T>
  static DeviceBuffer<T> copied(const std::vector<T>& values) {
    DeviceBuffer<T> buffer(static_cast<std::int64_t>(values.size()));
    buffer.copy_from(values);
    return buffer;
  }

  void allocate(int sm_count) {
    parameters_ = DeviceBuffer<float>(plan_.parameters);
    image_ = zeros<unsigned char>(plan_.image_bytes);
    block_losses_ = zeros<float>(blocks_);
    state_ = zeros<StepState>(1);
    inputs_ = DeviceBuffer<unsigned char>(batches_ * batch_bytes());
    if (plan_.form == Form::kWarps) return plan_warps();
    if (plan_.form != Form::kGeneral) return plan_owners();
    const std::int64_t layer_bytes = std::int64_t{plan_.tiles} * plan_.width_panels * kTilePanelBytes;
    activations_ = zeros<unsigned char>(plan_.hidden * layer_bytes);
    gradients_ = zeros<unsigned char>(plan_.hidden * layer_bytes);
    output_gradients_ = zeros<unsigned char>(std::int64_t{plan_.tiles} * logit_gradient_tile_bytes(plan_));
    plan_gradients(sm_count, layer_bytes);
  }

  /// Every thread block sums everything; how the update finds it.
  void plan_owners() {
    const int hidden = plan_.hidden, halves = plan_.width / 64;
    const bool wide = in_clusters(plan_.form);
    const std::int64_t stride = wide ? cluster_partial_floats(hidden) : pipeline_partial_floats(hidden);
    std::vector<Segment> segments;
    std::int64_t next_row = 0;
    const auto add = [&](Kind kind, int layer, int half, int weight_rows, int bias_rows) {
      segments.push_back({.kind = kind,
                          .layer = layer,
                          .first_output = kind == Kind::kPlain ? 64 * half : 0,
                          .first_input = kind == Kind::kTurned ? 64 * half : 0,
                          .weight_rows = weight_rows,
                          .bias_rows = bias_rows,
                          .splits = blocks_,
                          .partial = next_row * kWarpgroup,
                          .split_stride = stride});
      next_row += weight_rows + bias_rows;
    };
    for (int layer = 0; layer < hidden; ++layer)
      for (int half = 0; half < halves; ++half) add(Kind::kPlain, layer, half, 32 * halves, 2);
    for (int half = 0; half < halves; ++half) add(Kind::kTurned, hidden, half, 8, 0);
    add(Kind::kOutputBias, hidden, 0, 0, 1);
    keep_segments(segments);
    partials_ = DeviceBuffer<float>(blocks_ * stride);
    if (plan_.form == Form::kPair)
      kept_ = DeviceBuffer<unsigned char>(std::int64_t{blocks_} * kKeptTiles * kKeptTileBytes);
  }

  /// The same where warps keep all sums, as their lanes hold them.
  void plan_warps() {
    const int hidden = plan_.hidden;
    const std::int64_t stride = warp_partial_rows(hidden) * kWarpgroup;
    std::vector<Segment> segments;
    std::int64_t next_row = 0;
    const auto add = [&](Kind kind, int layer, int rows) {
      segments.push_back({.kind = kind,
                          .layer = layer,
                          .first_output = 0,
                          .first_input = 0,
                          .weight_rows = rows,
                          .bias_rows = 0,
                          .splits = blocks_,
                          .partial = next_row * kWarpgroup,
                          .split_stride = stride});
      next_row += rows;
    };
    for (int layer = 0; layer < hidden; ++layer) add(Kind::kLanes, layer, 8);
    add(Kind::kLanes, hidden, 4);
    add(Kind::kLaneBiases, 0, 2);
    add(Kind::kLaneOutputBias, hidden, 1);
    keep_segments(segments);
    partials_ = DeviceBuffer<float>(blocks_ * stride);
  }

  /// The update's tables.
  void keep_segments(const std::vector<Segment>& segments) {
    int most_splits = 0;
    for (const Segment& segment : segments) most_splits = std::max(most_splits, segment.splits);
    const UpdateShare share = update_share(most_splits);
    std::vector<UpdateRows> rows;
    std::vector<UpdatePlaces> places;
    const auto add = [&](const Segment& segment, int begin, int end) {
      const int own_range = kWarpgroup / share.parts;
      for (int row = begin; row < end; row += share.rows) {
        const int count = std::min(share.rows, end - row);
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
    UpdatePlaces places{-1, {-1, -1, -1}};
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

  /// Which thread block sums which gradients over which tiles, and how the update finds them.
  void plan_gradients(int sm_count, std::int64_t layer_bytes) {
    const std::vector<GradientItem> items = gradient_items(plan_);
    const std::vector<int> item_splits = split_tiles(items, plan_.tiles, sm_count);
    std::vector<GradientBlock> blocks;
    std::vector<Segment> segments;
    std::int64_t floats = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const GradientItem& item = items[i];
      const int splits = item_splits[i];
      const std::int64_t warpgroup_floats = std::int64_t{item.rows()} * kWarpgroup;
      const bool of_inputs = item.layer == 0, of_outputs = item.layer == plan_.hidden;
      const std::int64_t width_bytes = plan_.width_panels * kTilePanelBytes;
      GradientBlock block{
          .outputs = (of_outputs ? output_gradients_.data() : gradients_.data() + item.layer * layer_bytes) +
                     item.output_panel * kTilePanelBytes,
          .inputs = (of_inputs ? inputs_.data() : activations_.data() + (item.layer - 1) * layer_bytes) +
                    item.input_panel * kTilePanelBytes,
          .output_tile_bytes = of_outputs ? logit_gradient_tile_bytes(plan_) : width_bytes,
          .input_tile_bytes = of_inputs ? input_tile_bytes(plan_) : width_bytes,
          .output_columns = item.output_columns,
          .input_columns = item.input_columns,
          .with_bias = item.with_bias,
          .of_batch = of_inputs,
          .first_tile = 0,
          .end_tile = 0,
          .partial = 0};
      for (int w = 0; w < item.warpgroups(); ++w) {
        segments.push_back({.kind = Kind::kQuads,
                            .layer = item.layer,
                            .first_output = (item.output_panel + w) * kPanelColumns,
                            .first_input = item.input_panel * kPanelColumns,
                            .weight_rows = item.weight_rows(),
                            .bias_rows = item.rows() - item.weight_rows(),
                            .splits = splits,
                            .partial = floats + w * warpgroup_floats,
                            .split_stride = item.warpgroups() * warpgroup_floats});
      }
      for (int split = 0; split < splits; ++split) {
        block.first_tile = static_cast<std::int32_t>(std::int64_t{plan_.tiles} * split / splits);
        block.end_tile = static_cast<std::int32_t>(std::int64_t{plan_.tiles} * (split + 1) / splits);
        block.partial = floats;
        blocks.push_back(block);
        floats += item.warpgroups() * warpgroup_floats;
      }
    }
    gradient_blocks_ = copied(blocks);
    keep_segments(segments);
    partials_ = DeviceBuffer<float>(floats);
  }

  void upload(const DatasetView& data) {
    const std::int64_t samples = batches_ * plan_.batch;
    labels_ = DeviceBuffer<std::int32_t>(samples);
    labels_.copy_from({data.labels, static_cast<std::size_t>(samples)});
    const std::int64_t batch_values = std::int64_t{plan_.batch} * plan_.inputs;
    const std::int64_t at_once = std::clamp<std::int64_t>(kUploadBytes / (4 * batch_values), 1, batches_);
    DeviceBuffer<float> staged(at_once * batch_values);
    for (std::int64_t batch = 0; batch < batches_; batch += at_once) {
      const std::int64_t now = std::min(at_once, batches_ - batch);
      CUDA_CHECK(cudaMemcpyAsync(staged.data(), data.features + batch * batch_values,
                                 static_cast<std::size_t>(now * batch_values) * sizeof(float),
                                 cudaMemcpyHostToDevice, stream_.get()));
      pack_inputs(precision_, plan_, staged.data(), now, inputs_.data() + batch * batch_bytes(),
                  stream_.get());
      stream_.synchronize();
    }
  }
  std::int64_t batch_bytes() const { return std::int64_t{plan_.tiles} * input_tile_bytes(plan_); }

  void set_arguments(const Workload& workload) {
    const double scale = loss_scale(precision_, plan_.batch);
    chain_.plan = plan_;
    chain_.layout = chain_layout(plan_, kSharedLimit);
    chain_.image = image_.data();
    chain_.inputs = inputs_.data();
    chain_.labels = labels_.data();
    chain_.state = state_.data();
    chain_.activations = activations_.data();
    chain_.gradients = gradients_.data();
    chain_.output_gradients = output_gradients_.data();
    chain_.block_losses = block_losses_.data();
    chain_.gradient_scale = static_cast<float>(scale) / static_cast<float>(plan_.batch);
    pipeline_ = {.plan = plan_,
                 .image = image_.data(),
                 .inputs = inputs_.data(),
                 .labels = labels_.data(),
                 .state = state_.data(),
                 .partials = partials_.data(),
                 .block_losses = block_losses_.data(),
                 .gradient_scale = chain_.gradient_scale,
                 .kept = kept_.data()};
    update_.plan = plan_;
    update_.rows = update_rows_.data();
    update_.places = update_places_.data();
    update_.row_blocks = static_cast<std::int32_t>(update_rows_.size());
    update_.partials = partials_.data();
    update_.parameters = parameters_.data();
    update_.image = image_.data();
    update_.update_factor = -static_cast<float>(workload.optimizer.learning_rate) / static_cast<float>(scale);
    update_.block_losses = block_losses_.data();
    update_.loss_blocks = blocks_;
    update_.losses = losses_.data();
    update_.loss_slots = kKeptLosses;
    update_.batches = batches_;
    update_.state = state_.data();
  }

  void queue_step() {
    if (plan_.form != Form::kGeneral) {
      const auto launch = in_clusters(plan_.form)      ? launch_cluster
                          : plan_.form == Form::kWarps ? launch_warps
                                                       : launch_pipeline;
      launch(precision_, pipeline_, blocks_, stream_.get());
      return launch_update(precision_, update_, stream_.get());
    }
    launch_chain(precision_, chain_, blocks_, stream_.get());
    launch_gradients(precision_, gradient_blocks_.data(), static_cast<int>(gradient_blocks_.size()),
                     batch_bytes(), state_.data(), partials_.data(), stream_.get());
    launch_update(precision_, update_, stream_.get());
  }

  const std::vector<int> widths_;
  const Precision precision_;
  const Plan plan_;
  const std::int64_t batches_;
  const int blocks_;  // of the chain

  Stream stream_;
  Event begin_, end_;
  DeviceBuffer<float> parameters_;
  DeviceBuffer<unsigned char> image_;  // what products read of them; plan.h
  DeviceBuffer<unsigned char> inputs_, activations_, gradients_, output_gradients_;  // in panels; kernels.h
  DeviceBuffer<unsigned char> kept_;
  DeviceBuffer<std::int32_t> labels_;
  DeviceBuffer<GradientBlock> gradient_blocks_;
  DeviceBuffer<UpdateRows> update_rows_;
  DeviceBuffer<UpdatePlaces> update_places_;
  DeviceBuffer<float> partials_, block_losses_;
  KeptLosses losses_;
  DeviceBuffer<StepState> state_;

  ChainArguments chain_{};
  PipelineArguments pipeline_{};
  UpdateArguments update_{};
  Graph one_step_, many_steps_;
  std::int64_t next_step_ = 0;  // what the device's counter says
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

std::optional<std::string> fused_refusal(const Workload& workload, Precision precision) {
  if (auto refusal = shape_refusal(workload, precision)) return refusal;
  const Plan plan = make_plan(workload, precision);
  if (plan.form != Form::kGeneral) return std::nullopt;
  const ChainLayout layout = chain_layout(plan, kSharedLimit);
  if (layout.stages < 2)
    return "'" + workload.name + "' needs " + std::to_string(chain_layout(plan, 1 << 20).ring_begin) +
           " bytes of shared memory for weights and tiles, which leaves no room for a ring of inputs in " +
           std::to_string(kSharedLimit);
  return std::nullopt;
}

std::unique_ptr<Trainer> make_fused_trainer(const Workload& workload, Precision precision,
                                            const DatasetView& data, const Parameters& initial, int device) {
  validate(workload);
  if (const auto reason = fused_unavailable(device)) throw UnsupportedError("cuda-fused: " + *reason);
  if (const auto refusal = fused_refusal(workload, precision))
    throw UnsupportedError("cuda-fused: " + *refusal);
  require_data_for(workload, data, "cuda-fused");
  use_device(device);
  return std::make_unique<FusedTrainer>(workload, precision, data, initial, device);
}

}  // namespace headroom
