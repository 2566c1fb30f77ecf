#include "libtorch/graph_trainer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <map>
#include <utility>

#include "libtorch/rules.h"

namespace headroom::libtorch {
namespace {

// A graph launch costs the host about 7 us and the device a few: sixteen of the shortest steps hide both.
constexpr std::int64_t kStepsPerGraph = 16;
// Copies of the graph's batches; more would only push weights out of the L2.
constexpr std::int64_t kGraphFeatureBytes = std::int64_t{8} << 20;
constexpr std::int64_t kLargeBatchBytes = std::int64_t{4} << 20;
constexpr std::int64_t kMostGraphs = 64;
constexpr int kWarmUpRounds = 3;

/// The widest type whose elements make up `bytes`: the gather then moves whole vectors.
at::ScalarType widest_type(std::int64_t bytes, at::ScalarType own) {
  if (bytes % 16 == 0) return at::kComplexDouble;
  if (bytes % 8 == 0) return at::kDouble;
  return own;
}

/// A row for each batch, of the widest elements that divide it.
at::Tensor as_rows(const at::Tensor& batches) {
  const at::Tensor rows = batches.view({batches.size(0), -1});
  return rows.view(
      widest_type(rows.size(1) * static_cast<std::int64_t>(rows.element_size()), rows.scalar_type()));
}

/// out = the batches of these indices.
void gather(const at::Tensor& batches, const at::Tensor& indices, const at::Tensor& out) {
  at::Tensor rows = as_rows(out);
  at::index_select_out(rows, as_rows(batches), 0, indices);
}

/// One of a few streams that live as long as the process.
c10::cuda::CUDAStream stream_of_its_own(int which, c10::DeviceIndex device) {
  static std::map<std::pair<int, c10::DeviceIndex>, c10::cuda::CUDAStream> streams;
  const auto key = std::pair(which, device);
  const auto found = streams.find(key);
  if (found != streams.end()) return found->second;
  return streams.emplace(key, c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device)).first->second;
}

}  // namespace

GraphTrainer::GraphTrainer(const Workload& workload, Precision precision, const DatasetView& data, int device,
                           std::int64_t feature_columns, std::int64_t target_columns, double scale)
    : TorchTrainer(workload, precision, data, device, scale) {
  const std::int64_t batch = workload.batch_size;
  features_ = all_features(feature_columns).view({batches(), batch, feature_columns});
  targets_ = all_targets(target_columns);
  const bool labels = targets_.dim() == 1;
  targets_ = labels ? targets_.view({batches(), batch}) : targets_.view({batches(), batch, target_columns});
  const std::int64_t batch_bytes =
      batch * (feature_columns * static_cast<std::int64_t>(features_.element_size()) +
               (labels ? 0 : target_columns * static_cast<std::int64_t>(targets_.element_size())));
  const bool on_gpu = this->device().is_cuda();
  graph_per_batch_ = on_gpu && batch_bytes >= kLargeBatchBytes && batches() <= kMostGraphs;
  steps_per_graph_ = !on_gpu || graph_per_batch_
                         ? 1
                         : std::clamp<std::int64_t>(kGraphFeatureBytes / batch_bytes, 1, kStepsPerGraph);
  if (!graph_per_batch_) {
    const auto room_for = [&](const at::Tensor& batches) {
      std::vector<std::int64_t> shape = batches.sizes().vec();
      shape[0] = steps_per_graph_;
      return at::empty(shape, batches.options());
    };
    graph_features_ = room_for(features_);
    graph_targets_ = room_for(targets_);
  }
  graph_losses_ = at::empty({steps_per_graph_}, all_losses().options());
  offsets_ = at::arange(steps_per_graph_, at::TensorOptions().dtype(at::kLong).device(this->device()));
  batch_indices_ = offsets_.clone();
  loss_slots_ = offsets_.clone();
  numbers_ = offsets_.to(at::kFloat).add_(1);
}

c10::cuda::CUDAStream GraphTrainer::side_stream(int which) const {
  return stream_of_its_own(1 + which, device().index());
}

std::string GraphTrainer::graph_note() const {
  return graph_per_batch_ ? "a graph for each batch" : std::to_string(steps_per_graph_) + " steps a graph";
}

void GraphTrainer::capture() {
  if (!device().is_cuda()) return;
  many_steps_ = nullptr;
  one_step_ = nullptr;
  batch_graphs_.clear();
  pool_ = {0, 0};
  go_to(0);
  at::cuda::getCurrentCUDAStream().synchronize();
  if (graph_per_batch_) {
    for (std::int64_t batch = 0; batch < batches(); ++batch)
      batch_graphs_.push_back(capture_work([&] { queue_batch(batch); }));
  } else {
    one_step_ = capture_work([&] { queue(1); });
    if (steps_per_graph_ > 1) many_steps_ = capture_work([&] { queue(steps_per_graph_); });
  }
  next_step_ = -1;
}

template <class Work>
std::unique_ptr<at::cuda::CUDAGraph> GraphTrainer::capture_work(Work&& work) {
  const c10::cuda::CUDAStream stream = stream_of_its_own(0, device().index());
  const c10::cuda::CUDAStreamGuard guard(stream);
  // Libraries choose kernels and allocate workspaces in the first rounds, which a capture does not allow.
  for (int round = 0; round < kWarmUpRounds; ++round) work();
  stream.synchronize();
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  graph->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    // The capture has to end before the stream can be used again; the first error is the one worth reporting.
    try {
      graph->capture_end();
    } catch (const std::exception&) {
    }
    throw;
  }
  graph->capture_end();
  pool_ = graph->pool();
  stream.synchronize();
  return graph;
}

/// The graph that trains from `step` on when `left` steps are wanted.
at::cuda::CUDAGraph& GraphTrainer::graph_for(std::int64_t step, std::int64_t left) {
  if (graph_per_batch_) return *batch_graphs_[static_cast<std::size_t>(step % batches())];
  return many_steps_ && left >= steps_per_graph_ ? *many_steps_ : *one_step_;
}

double GraphTrainer::measured_step_seconds() {
  at::cuda::CUDAGraph& graph = graph_for(0, steps_per_graph_);
  const double steps = static_cast<double>(steps_per_graph_);
  c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT),
      end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  const c10::Stream stream = at::cuda::getCurrentCUDAStream(device().index()).unwrap();
  double least = 0;
  for (int attempt = 0, replays = 1; attempt < 6; ++attempt) {
    begin.record(stream);
    for (int replay = 0; replay < replays; ++replay) graph.replay();
    end.record(stream);
    end.synchronize();
    const double seconds = begin.elapsedTime(end) * 1e-3 / replays / steps;
    // The first attempt finds out how many replays are 4 ms, the second warms up.
    if (attempt == 0) replays = static_cast<int>(std::clamp(4e-3 / (seconds * steps), 1.0, 50.0));
    if (attempt >= 2) least = attempt == 2 ? seconds : std::min(least, seconds);
  }
  next_step_ = -1;
  return least;
}

void GraphTrainer::run_steps(std::int64_t first_step, std::int64_t count) {
  if (first_step != next_step_) go_to(first_step);
  for (std::int64_t step = first_step, end = first_step + count; step < end;) {
    if (!device().is_cuda()) {
      queue(1);
      ++step;
      continue;
    }
    at::cuda::CUDAGraph& graph = graph_for(step, end - step);
    graph.replay();
    step += &graph == many_steps_.get() ? steps_per_graph_ : 1;
  }
  next_step_ = first_step + count;
}

void GraphTrainer::go_to(std::int64_t step) {
  batch_indices_.copy_(offsets_).add_(step % batches()).remainder_(batches());
  loss_slots_.copy_(offsets_).add_(step % kKeptLosses).remainder_(kKeptLosses);
  if (counts_steps(workload().optimizer)) numbers_.copy_(offsets_).add_(static_cast<double>(step + 1));
}

void GraphTrainer::queue(std::int64_t steps) {
  const at::Tensor batch_indices = batch_indices_.narrow(0, 0, steps);
  const at::Tensor features = graph_features_.narrow(0, 0, steps);
  const at::Tensor targets = graph_targets_.narrow(0, 0, steps);
  gather(features_, batch_indices, features);
  gather(targets_, batch_indices, targets);
  queue_steps(features, targets, graph_losses_.narrow(0, 0, steps));
  close_steps(steps);
}

void GraphTrainer::queue_batch(std::int64_t batch) {
  queue_steps(features_.narrow(0, batch, 1), targets_.narrow(0, batch, 1), graph_losses_);
  close_steps(1);
}

/// The losses to their slots, and the indices to the next steps.
void GraphTrainer::close_steps(std::int64_t steps) {
  at::Tensor ring = all_losses();
  ring.index_copy_(0, loss_slots_.narrow(0, 0, steps), graph_losses_.narrow(0, 0, steps));
  if (!graph_per_batch_) batch_indices_.add_(steps).remainder_(batches());
  loss_slots_.add_(steps).remainder_(kKeptLosses);
  if (counts_steps(workload().optimizer)) numbers_.add_(steps);
}

}  // namespace headroom::libtorch
