// Empty kernels on a stream and in graphs.
#include <algorithm>

#include "calibration/launches.h"
#include "calibration/timing.h"

namespace headroom::calibration {
namespace {

__global__ void do_nothing() {}

void queue_empty_kernels(Stream& stream, int count) {
  for (int i = 0; i < count; ++i) {
    do_nothing<<<1, 32, 0, stream.get()>>>();
    CUDA_CHECK(cudaGetLastError());
  }
}

}  // namespace

double launch_seconds(Stream& stream) {
  constexpr int kLaunches = 1000;
  return fastest_seconds(stream, [&] { queue_empty_kernels(stream, kLaunches); }) / kLaunches;
}

double graph_node_seconds(Stream& stream) {
  // The difference of two graphs, so that the launch of the graph itself is not in it.
  const auto seconds_of = [&](int nodes) {
    Graph graph = Graph::capture(stream, [&] { queue_empty_kernels(stream, nodes); });
    return fastest_seconds(stream, [&] { graph.launch(stream); });
  };
  constexpr int kFew = 200, kMany = 1200;
  const double few = seconds_of(kFew);
  return (seconds_of(kMany) - few) / (kMany - kFew);
}

double graph_relaunch_seconds(Stream& stream) {
  constexpr int kNodes = 10, kLaunches = 500;
  Graph graph = Graph::capture(stream, [&] { queue_empty_kernels(stream, kNodes); });
  return fastest_seconds(stream,
                         [&] {
                           for (int i = 0; i < kLaunches; ++i) graph.launch(stream);
                         }) /
         kLaunches;
}

}  // namespace headroom::calibration
