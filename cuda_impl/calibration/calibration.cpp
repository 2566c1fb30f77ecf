// The list of what is measured, in which sizes, and how it is put into words.
#include "calibration/calibration.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>

#include "calibration/exchanges.h"
#include "calibration/launches.h"
#include "calibration/links.h"
#include "calibration/rates.h"
#include "device/device.h"

namespace headroom {
namespace {

using namespace calibration;

constexpr int kExchanges = 2000;
// Far more than any cache, and long enough that a kernel's beginning and end do not count.
constexpr std::int64_t kLargestBuffer = std::int64_t{4} << 30;

std::string count_text(int count, const char* noun) { return std::to_string(count) + " " + noun; }

void add_bandwidths(Calibration& rates, Stream& stream, int sm_count) {
  std::size_t free_bytes = 0, all_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  const std::int64_t bytes = std::min(kLargestBuffer, static_cast<std::int64_t>(free_bytes) / 4 / 16 * 16);
  const std::string size = std::to_string(bytes >> 20) + " MiB";
  rates["copy"] = {copy_rate(stream, sm_count, bytes), "bytes_per_second",
                   "device-to-device copy of " + size + ", bytes read plus written, fastest of 5"};
  rates["read"] = {read_rate(stream, sm_count, bytes), "bytes_per_second",
                   "all SMs read " + size + " once, fastest of 5"};
  rates["one_sm_read"] = {one_sm_read_rate(stream), "bytes_per_second",
                          "one SM reads 4 MiB that lie in the L2, fastest of 5"};
}

void add_launches(Calibration& rates, Stream& stream) {
  rates["launch"] = {launch_seconds(stream), "seconds",
                     "1000 empty kernels launched back to back on a stream, fastest of 5"};
  rates["graph_node"] = {graph_node_seconds(stream), "seconds",
                         "a graph of 1200 empty kernels less one of 200, per kernel, fastest of 5 each"};
  rates["graph_relaunch"] = {graph_relaunch_seconds(stream), "seconds",
                             "a graph of 10 empty kernels launched 500 times back to back, fastest of 5"};
}

// The fastest of several shapes; each must have delivered what it should.
template <class Gather>
std::pair<double, GatherShape> fastest_gather(Stream& stream, const std::vector<GatherShape>& shapes,
                                              Gather&& gather) {
  std::pair<double, GatherShape> fastest{0, {}};
  for (const GatherShape& shape : shapes) {
    const GatherResult result = gather(stream, shape, kExchanges);
    if (result.values != expected_gather(shape, kExchanges))
      throw std::runtime_error("calibration: an exchange over " + count_text(shape.blocks, "blocks") +
                               " delivered wrong values");
    if (fastest.first == 0 || result.seconds < fastest.first) fastest = {result.seconds, shape};
  }
  return fastest;
}

std::string gather_text(const GatherShape& shape, const char* where) {
  return "all-gather of a [32 x " + std::to_string(shape.columns) + "] matrix of 16-bit values over " +
         count_text(shape.blocks, "blocks of ") + count_text(shape.threads, "threads ") + where +
         ", 2000 in a chain, fastest of 5 and of several shapes";
}

void add_cluster_exchanges(Calibration& rates, Stream& stream) {
  rates["cluster_barrier"] = {cluster_barrier_seconds(stream, 8, kExchanges), "seconds",
                              "barrier.cluster over 8 blocks, 2000 in a chain, fastest of 5"};
  rates["remote_read"] = {
      remote_read_seconds(stream, kExchanges), "seconds",
      "dependent reads of the other block's shared memory in a cluster of 2, 2000 in a chain, fastest of 5"};
  std::vector<GatherShape> shapes;
  for (const int blocks : {2, 4, 8, 16}) {
    for (const int threads : {128, 256, 512}) shapes.push_back({blocks, 128, threads});
  }
  const auto [seconds, shape] = fastest_gather(stream, shapes, cluster_gather);
  rates["cluster_gather_128"] = {seconds, "seconds", gather_text(shape, "in one cluster (st.async)")};
}

void add_chip_exchanges(Calibration& rates, Stream& stream, int sm_count, std::int64_t shared_bytes) {
  rates["chip_barrier"] = {chip_barrier_seconds(stream, sm_count, kExchanges), "seconds",
                           "atomic counter over one block on each of " + count_text(sm_count, "SMs") +
                               ", 2000 in a chain, fastest of 5"};
  std::vector<GatherShape> small_shapes;
  for (const int blocks : {2, 8, 32}) small_shapes.push_back({blocks, 8, 32});
  const auto [small_seconds, small_shape] = fastest_gather(stream, small_shapes, chip_gather);
  rates["chip_gather_8"] = {small_seconds, "seconds",
                            gather_text(small_shape, "through the L2 (self-validating packets)")};
  std::vector<GatherShape> shapes;
  for (const int blocks : {32, 64, 128}) {
    if (blocks <= sm_count) shapes.push_back({blocks, 1024, 512});
  }
  if (shapes.empty() || shared_bytes < 2 * 32 * 1024 * 2) return;  // two matrices have to fit
  const auto [seconds, shape] = fastest_gather(stream, shapes, chip_gather);
  rates["chip_gather_1024"] = {seconds, "seconds",
                               gather_text(shape, "through the L2 (self-validating packets)")};
}

}  // namespace

Calibration calibrate_links(const std::vector<int>& devices) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 28;
  constexpr int kRoundTrips = 10000;
  double bytes_per_second = std::numeric_limits<double>::infinity(), seconds = 0;
  for (std::size_t one = 0; one < devices.size(); ++one) {
    for (std::size_t other = one + 1; other < devices.size(); ++other) {
      if (no_peer_access(devices[one], devices[other])) return {};
      bytes_per_second = std::min(bytes_per_second, link_store_rate(devices[one], devices[other], kBytes));
      seconds = std::max(seconds, link_round_trip_seconds(devices[one], devices[other], kRoundTrips));
    }
  }
  if (seconds == 0) return {};
  return {
      {"link_store",
       {bytes_per_second, "bytes_per_second",
        "all SMs of a device store 256 MiB into another's memory, fastest of 5, slowest pair of devices"}},
      {"link_round_trip",
       {seconds, "seconds",
        "a store into another device's memory and the store that answers it, 10000 in a chain, fastest of 5, "
        "slowest pair of devices"}}};
}

Calibration calibrate_device(int device) {
  use_device(device);
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  const int sm_count = properties.multiProcessorCount;
  const std::int64_t shared_bytes = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  Stream stream;
  Calibration rates;
  rates["on_chip"] = {static_cast<double>(sm_count) *
                          static_cast<double>(shared_bytes + 4 * properties.regsPerMultiprocessor),
                      "bytes",
                      "shared memory that a block may use plus registers, over all SMs; not measured"};
  rates["fp32"] = {fp32_rate(stream, sm_count), "flops_per_second",
                   "plain fp32 multiply-adds on random values in registers, fastest of 5"};
  add_bandwidths(rates, stream, sm_count);
  add_launches(rates, stream);
  add_chip_exchanges(rates, stream, sm_count, shared_bytes);
  if (has_clusters(device)) add_cluster_exchanges(rates, stream);
  return rates;
}

}  // namespace headroom
