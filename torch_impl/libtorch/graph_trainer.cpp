#include "libtorch/graph_trainer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <map>
#include <utility>

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
                           std::int64_t feature_columns, double scale)
    : TorchTrainer(workload, precision, data, device, scale), feature_columns_(feature_columns) {
  const std::int64_t batch = workload.batch_size;
  features_ = all_features(feature_columns_).view({batches(), batch, feature_columns_});
  const std::int64_t batch_bytes =
      batch * feature_columns_ * static_cast<std::int64_t>(features_.element_size());
  const bool on_gpu = this->device().is_cuda();
  graph_per_batch_ = on_gpu && batch_bytes >= kLargeBatchBytes && batches() <= kMostGraphs;
  steps_per_graph_ = !on_gpu || graph_per_batch_
                         ? 1
                         : std::clamp<std::int64_t>(kGraphFeatureBytes / batch_bytes, 1, kStepsPerGraph);
  data_ = features_.view({batches(), batch * feature_columns_})
              .view(widest_type(batch_bytes, features_.scalar_type()));
  labels_ = all_labels().view({batches(), batch});
  if (!graph_per_batch_) {
    graph_features_ = at::empty({steps_per_graph_, batch * feature_columns_}, features_.options());
    graph_labels_ = at::empty({steps_per_graph_, batch}, labels_.options());
  }
  graph_losses_ = at::empty({steps_per_graph_}, all_losses().options());
  offsets_ = at::arange(steps_per_graph_, labels_.options());
  batch_indices_ = offsets_.clone();
  loss_slots_ = offsets_.clone();
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
}

void GraphTrainer::queue(std::int64_t steps) {
  const at::Tensor batch_indices = batch_indices_.narrow(0, 0, steps);
  const at::Tensor features = graph_features_.narrow(0, 0, steps);
  at::Tensor labels = graph_labels_.narrow(0, 0, steps);
  at::Tensor wide_features = features.view(data_.scalar_type());
  at::index_select_out(wide_features, data_, 0, batch_indices);
  at::index_select_out(labels, labels_, 0, batch_indices);
  queue_steps(features.view({steps, workload().batch_size, feature_columns_}), labels,
              graph_losses_.narrow(0, 0, steps));
  close_steps(steps);
}

void GraphTrainer::queue_batch(std::int64_t batch) {
  queue_steps(features_.narrow(0, batch, 1), labels_.narrow(0, batch, 1), graph_losses_);
  close_steps(1);
}

/// The losses to their slots, and the indices to the next steps.
void GraphTrainer::close_steps(std::int64_t steps) {
  at::Tensor ring = all_losses();
  ring.index_copy_(0, loss_slots_.narrow(0, 0, steps), graph_losses_.narrow(0, 0, steps));
  if (!graph_per_batch_) batch_indices_.add_(steps).remainder_(batches());
  loss_slots_.add_(steps).remainder_(kKeptLosses);
}

}  // namespace headroom::libtorch
