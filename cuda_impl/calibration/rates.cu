// Bandwidth and plain fp32 arithmetic.
//
// Streams are 16-byte loads, several in flight a thread: on an H200 rings of bulk copies reach no more. Which number of
// blocks and loads is the best differs between devices and between reading and copying, so a few are tried. Arithmetic is
// eight independent chains a thread on values in registers.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "calibration/rates.h"
#include "calibration/timing.h"
#include "device/memory.h"

namespace headroom::calibration {
namespace {

constexpr int kThreads = 512;
constexpr std::int64_t kLargestTile = kThreads * 8;  // vectors that a block has in flight
constexpr int kChains = 8, kMultiplyAdds = 4096;

__device__ std::uint32_t mixed(std::uint32_t value) {
  value = (value ^ value >> 16) * 0x7feb352du;
  value = (value ^ value >> 15) * 0x846ca68bu;
  return value ^ value >> 16;
}

__global__ void fill_randomly(std::uint32_t* values, std::int64_t count) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    values[i] = mixed(static_cast<std::uint32_t>(i));
}

// Reads `count` vectors, a multiple of kInFlight * blockDim, and with kStore writes them; else their exclusive or ends in
// `sink`, so that no load is left out.
template <bool kStore, int kInFlight>
__global__ void stream_through(const uint4* from, uint4* to, std::int64_t count, std::uint32_t* sink) {
  const std::int64_t tile = std::int64_t{blockDim.x} * kInFlight;
  std::uint32_t sum = 0;
  for (std::int64_t first = blockIdx.x * tile + threadIdx.x; first < count; first += gridDim.x * tile) {
    uint4 values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) values[i] = __ldcs(from + first + i * blockDim.x);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (kStore)
        __stcs(to + first + i * blockDim.x, values[i]);
      else
        sum ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
    }
  }
  if (!kStore && sum == 0x9e3779b9u) *sink = sum;
}

// Volatile: passes over the same values must not be joined.
__device__ uint4 load_past_l1(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// One block, `passes` times over `count` vectors, a multiple of what it has in flight.
__global__ void read_alone(const uint4* from, int count, int passes, std::uint32_t* sink) {
  constexpr int kInFlight = 8;
  std::uint32_t sum = 0;
  for (int pass = 0; pass < passes; ++pass) {
    for (int first = threadIdx.x; first < count; first += blockDim.x * kInFlight) {
      uint4 values[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) values[i] = load_past_l1(from + first + i * blockDim.x);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) sum ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
    }
  }
  if (sum == 0x9e3779b9u) *sink = sum;
}

__global__ void multiply_add(const float* values, float* sink) {
  float chain[kChains];
  const float factor = 1.0f - 1e-3f * values[threadIdx.x], summand = values[threadIdx.x + 1];
#pragma unroll
  for (int i = 0; i < kChains; ++i) chain[i] = values[threadIdx.x + i];
#pragma unroll 8
  for (int step = 0; step < kMultiplyAdds; ++step) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) chain[i] = fmaf(chain[i], factor, summand);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += chain[i];
  if (sum == 12345.678f) *sink = sum;
}

DeviceBuffer<uint4> random_vectors(Stream& stream, std::int64_t count) {
  DeviceBuffer<uint4> buffer(count);
  fill_randomly<<<1024, 256, 0, stream.get()>>>(reinterpret_cast<std::uint32_t*>(buffer.data()), 4 * count);
  CUDA_CHECK(cudaGetLastError());
  return buffer;
}

}  // namespace

namespace {

// Seconds of the fastest kernel that streams through `from`.
template <bool kStore>
double fastest_stream(Stream& stream, int sm_count, const DeviceBuffer<uint4>& from, uint4* to,
                      std::uint32_t* sink) {
  double fastest = 0;
  for (const int blocks_per_sm : {2, 4}) {
    for (const auto kernel : {stream_through<kStore, 4>, stream_through<kStore, 8>}) {
      const double seconds = fastest_seconds(stream, [&] {
        kernel<<<sm_count * blocks_per_sm, kThreads, 0, stream.get()>>>(from.data(), to, from.size(), sink);
        CUDA_CHECK(cudaGetLastError());
      });
      fastest = fastest == 0 ? seconds : std::min(fastest, seconds);
    }
  }
  return fastest;
}

// Vectors in `bytes`, in whole tiles.
std::int64_t vectors_in(std::int64_t bytes) {
  const std::int64_t tiles = bytes / static_cast<std::int64_t>(sizeof(uint4)) / kLargestTile;
  if (tiles < 1)
    throw std::invalid_argument("a buffer of " + std::to_string(bytes) + " bytes: too small to time");
  return tiles * kLargestTile;
}

}  // namespace

double copy_rate(Stream& stream, int sm_count, std::int64_t bytes) {
  const DeviceBuffer<uint4> from = random_vectors(stream, vectors_in(bytes));
  DeviceBuffer<uint4> to(from.size());
  const double library = fastest_seconds(stream, [&] {
    CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(from.bytes()),
                               cudaMemcpyDeviceToDevice, stream.get()));
  });
  const double kernel = fastest_stream<true>(stream, sm_count, from, to.data(), nullptr);
  return 2 * static_cast<double>(from.bytes()) / std::min(kernel, library);
}

double read_rate(Stream& stream, int sm_count, std::int64_t bytes) {
  const DeviceBuffer<uint4> from = random_vectors(stream, vectors_in(bytes));
  DeviceBuffer<std::uint32_t> sink(1);
  return static_cast<double>(from.bytes()) /
         fastest_stream<false>(stream, sm_count, from, nullptr, sink.data());
}

double one_sm_read_rate(Stream& stream) {
  constexpr int kCount = (4 << 20) / sizeof(uint4), kPasses = 20;
  const DeviceBuffer<uint4> from = random_vectors(stream, kCount);
  DeviceBuffer<std::uint32_t> sink(1);
  const double seconds = fastest_seconds(stream, [&] {
    read_alone<<<1, 1024, 0, stream.get()>>>(from.data(), kCount, kPasses, sink.data());
    CUDA_CHECK(cudaGetLastError());
  });
  return kPasses * static_cast<double>(from.bytes()) / seconds;
}

double fp32_rate(Stream& stream, int sm_count) {
  DeviceBuffer<float> values(kThreads + kChains);
  std::vector<float> random(static_cast<std::size_t>(values.size()));
  std::uint32_t state = 1;
  for (float& value : random) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) * 0x1p-24f;
  }
  values.copy_from(random);
  DeviceBuffer<float> sink(1);
  constexpr int kBlocksPerSm = 4, kRounds = 8;  // so that the blocks' beginning and end do not count
  const int blocks = sm_count * kBlocksPerSm * kRounds;
  const double seconds = fastest_seconds(stream, [&] {
    multiply_add<<<blocks, kThreads, 0, stream.get()>>>(values.data(), sink.data());
    CUDA_CHECK(cudaGetLastError());
  });
  return 2.0 * blocks * kThreads * kChains * kMultiplyAdds / seconds;
}

}  // namespace headroom::calibration
