// Barriers and all-gathers: the fastest ways known here, timed as chains in which nothing overlaps.
//
// A block's part of the next exchange is what it received from its neighbour, plus one: an exchange cannot begin before
// the one before has ended, and the result shows whether every value went through every exchange.
//   in a cluster: st.async into everybody's shared memory; one mbarrier a buffer counts the bytes. Three buffers: while
//     some threads still read the last one, fast neighbours may be one exchange ahead.
//   over the chip: 16-byte packets through the L2, validated by a bit in each 8-byte half (what the PTX memory model
//     promises to be seen whole), so that no fence, counter or flag is waited for. Two buffers in memory suffice, since a
//     block publishes n + 1 only after it has consumed n.
// Waiting is bounded: a kernel that would wait for ever traps.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "calibration/exchanges.h"
#include "calibration/timing.h"
#include "device/device.h"
#include "device/memory.h"

namespace headroom::calibration {
namespace {

constexpr int kRows = 32;
constexpr std::uint32_t kMostPolls = 1u << 24;
constexpr std::uint32_t kTag = 0x80000000u;

__device__ void give_up_after(std::uint32_t& polls) {
  if (++polls > kMostPolls) __trap();
}

// The value of vector `index` of part `part` after `exchange` exchanges, counted from 0; -1 is what they begin with.
__host__ __device__ uint4 gathered(int part, int index, int exchange, int parts) {
  const auto origin = static_cast<std::uint32_t>((part + exchange + parts) % parts);
  return make_uint4(origin * 1000 + static_cast<std::uint32_t>(index + exchange),
                    static_cast<std::uint32_t>(index), origin, 7);
}

__device__ uint4 next_value(uint4 value) {
  value.x += 1;
  return value;
}

// ---- clusters: sm_90 and newer; elsewhere the kernels trap and nobody launches them ----

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HEADROOM_CLUSTERS 1
#else
#define HEADROOM_CLUSTERS 0
#endif

#if HEADROOM_CLUSTERS
__device__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ std::uint32_t address_in(std::uint32_t shared, std::uint32_t rank) {
  std::uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
__device__ void wait_for_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ void wait_for_bytes(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done = 0, polls = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    give_up_after(polls);
  }
}
__device__ void store_remotely(std::uint32_t address, uint4 value, std::uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}
#endif

__global__ void repeat_cluster_barrier(int repeats) {
#if HEADROOM_CLUSTERS
  for (int i = 0; i < repeats; ++i) wait_for_cluster();
#else
  __trap();
#endif
}

// The first thread follows a chain of indices in the other block's shared memory.
__global__ void follow_remotely(int repeats, std::uint32_t* end) {
#if HEADROOM_CLUSTERS
  constexpr std::uint32_t kCount = 1024;
  __shared__ std::uint32_t next[kCount];
  for (std::uint32_t i = threadIdx.x; i < kCount; i += blockDim.x) next[i] = (i * 5 + 17) % kCount;
  wait_for_cluster();
  if (cluster_rank() == 0 && threadIdx.x == 0) {
    const std::uint32_t base = address_in(shared_address(next), 1);
    std::uint32_t index = 0;
    for (int i = 0; i < repeats; ++i) {
      asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(index) : "r"(base + 4 * index) : "memory");
    }
    *end = index;
  }
  wait_for_cluster();
#else
  __trap();
#endif
}

// A cluster; block r owns vectors [r * part, (r + 1) * part) of the matrix. out: [blocks, blocks * part]. A thread sends
// the same kSends vectors or fewer to the same blocks in every exchange: addresses are made once, since divisions
// would be a quarter of the time.
template <int kSends>
__global__ void gather_in_cluster(int blocks, int part, int repeats, uint4* out) {
#if HEADROOM_CLUSTERS
  constexpr std::uint32_t kBuffers = 3, kVector = sizeof(uint4), kBarrier = sizeof(std::uint64_t);
  extern __shared__ __align__(128) uint4 buffers[];  // [kBuffers, blocks * part]
  __shared__ __align__(8) std::uint64_t arrived[kBuffers];
  const int rank = static_cast<int>(cluster_rank()), neighbour = (rank + 1) % blocks;
  const int matrix = blocks * part;
  const std::uint32_t bytes = static_cast<std::uint32_t>(matrix) * kVector;
  const std::uint32_t barriers = shared_address(arrived);
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < kBuffers; ++i)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + i * kBarrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // As if exchange -1 had filled the last buffer.
  for (int i = threadIdx.x; i < matrix; i += blockDim.x)
    buffers[(kBuffers - 1) * matrix + i] = gathered(i / part, i % part, -1, blocks);

  int sends = 0;
  int from[kSends];                                    // vectors in a buffer
  std::uint32_t into[kSends], their_barriers[kSends];  // of the first buffer, as the receiver's addresses
  // Neighbours in a warp send neighbouring vectors to the same block; blocks begin with different receivers.
#pragma unroll
  for (int send = 0; send < kSends; ++send) {
    const int i = static_cast<int>(threadIdx.x) + send * static_cast<int>(blockDim.x);
    if (i >= matrix) break;
    const int index = i % part;
    const auto receiver = static_cast<std::uint32_t>((i / part + rank) % blocks);
    from[send] = neighbour * part + index;
    into[send] = address_in(shared_address(buffers + rank * part + index), receiver);
    their_barriers[send] = address_in(barriers, receiver);
    ++sends;
  }
  __syncthreads();
  if (threadIdx.x == 0) expect_bytes(barriers, bytes);
  wait_for_cluster();
  std::uint32_t buffer = 0, previous = kBuffers - 1, parity = 0;
  for (int exchange = 0; exchange < repeats; ++exchange) {
    const uint4* received = buffers + previous * static_cast<std::uint32_t>(matrix);
#pragma unroll
    for (int send = 0; send < kSends; ++send) {
      if (send < sends)
        store_remotely(into[send] + buffer * bytes, next_value(received[from[send]]),
                       their_barriers[send] + buffer * kBarrier);
    }
    previous = buffer;
    const std::uint32_t next = buffer + 1 == kBuffers ? 0 : buffer + 1;
    // The next exchange's bytes may arrive before this: the phase stays open until this arrival.
    if (threadIdx.x == 0) expect_bytes(barriers + next * kBarrier, bytes);
    wait_for_bytes(barriers + buffer * kBarrier, parity);
    buffer = next;
    if (buffer == 0) parity ^= 1;
  }
  wait_for_cluster();
  for (int i = threadIdx.x; i < matrix; i += blockDim.x)
    out[rank * matrix + i] = buffers[previous * static_cast<std::uint32_t>(matrix) + i];
#else
  __trap();
#endif
}

// ---- over the whole chip: all blocks run at the same time (cooperative launch) ----

__global__ void repeat_chip_barrier(int repeats, std::uint32_t* counter) {
  for (int i = 0; i < repeats; ++i) {
    __syncthreads();
    if (threadIdx.x == 0) {
      const std::uint32_t target = static_cast<std::uint32_t>(i + 1) * gridDim.x;
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
      std::uint32_t count = 0, polls = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
        give_up_after(polls);
      } while (count < target);
    }
    __syncthreads();
  }
}

__device__ void publish(uint4* packet, uint4 value, bool tag) {
  if (tag) value.y |= kTag, value.w |= kTag;
  const std::uint64_t low = std::uint64_t{value.y} << 32 | value.x;
  const std::uint64_t high = std::uint64_t{value.w} << 32 | value.z;
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(packet), "l"(low), "l"(high) : "memory");
}

__device__ uint4 look_at(const uint4* packet) {
  std::uint64_t low, high;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(low), "=l"(high)
               : "l"(packet)
               : "memory");
  return make_uint4(static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                    static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32));
}

__device__ bool is_valid(uint4 packet, bool tag) {
  return (packet.y >= kTag) == tag && (packet.w >= kTag) == tag;
}

// Block r owns vectors [r * part, (r + 1) * part). packets: [2, blocks * part], every tag set before the launch.
// With kAskFirst one thread a block waits for the last packet of each source before all load everything: fewer loads
// that come too early.
template <bool kAskFirst>
__global__ void gather_over_chip(int part, int repeats, uint4* packets, uint4* out) {
  constexpr int kInFlight = 8;
  extern __shared__ __align__(128) uint4 buffers[];  // [2, blocks * part]
  const int blocks = static_cast<int>(gridDim.x), rank = static_cast<int>(blockIdx.x);
  const int neighbour = (rank + 1) % blocks, matrix = blocks * part;
  for (int i = threadIdx.x; i < matrix; i += blockDim.x)
    buffers[matrix + i] = gathered(i / part, i % part, -1, blocks);
  __syncthreads();
  for (int exchange = 0; exchange < repeats; ++exchange) {
    uint4* shared_packets = packets + (exchange & 1) * matrix;
    uint4* received = buffers + (exchange & 1) * matrix;
    const uint4* mine = buffers + (exchange + 1 & 1) * matrix + neighbour * part;
    const bool tag = (exchange >> 1 & 1) != 0;
    for (int i = threadIdx.x; i < part; i += blockDim.x)
      publish(shared_packets + rank * part + i, next_value(mine[i]), tag);
    if (kAskFirst) {
      for (int source = threadIdx.x; source < blocks; source += blockDim.x) {
        std::uint32_t polls = 0;
        while (!is_valid(look_at(shared_packets + source * part + part - 1), tag)) give_up_after(polls);
      }
      __syncthreads();
    }
    for (int first = threadIdx.x; first < matrix; first += blockDim.x * kInFlight) {
      uint4 values[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int at = first + i * static_cast<int>(blockDim.x);
        if (at < matrix) values[i] = look_at(shared_packets + at);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int at = first + i * static_cast<int>(blockDim.x);
        if (at >= matrix) continue;
        std::uint32_t polls = 0;
        while (!is_valid(values[i], tag)) {
          values[i] = look_at(shared_packets + at);
          give_up_after(polls);
        }
        values[i].y &= ~kTag;
        values[i].w &= ~kTag;
        received[at] = values[i];
      }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < matrix; i += blockDim.x)
    out[rank * matrix + i] = buffers[(repeats + 1 & 1) * matrix + i];
}

// ---- launching ----

template <class... Parameters, class... Arguments>
void launch_cluster(Stream& stream, void (*kernel)(Parameters...), int blocks, int threads,
                    std::int64_t shared_bytes, Arguments... arguments) {
  const void* address = reinterpret_cast<const void*>(kernel);
  if (blocks > 8)
    CUDA_CHECK(cudaFuncSetAttribute(address, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  CUDA_CHECK(cudaFuncSetAttribute(address, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = dim3(static_cast<unsigned>(blocks));
  configuration.blockDim = dim3(static_cast<unsigned>(threads));
  configuration.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  configuration.stream = stream.get();
  configuration.attrs = &cluster;
  configuration.numAttrs = 1;
  CUDA_CHECK(cudaLaunchKernelEx(&configuration, kernel, static_cast<Parameters>(arguments)...));
}

template <class... Parameters, class... Arguments>
void launch_together(Stream& stream, void (*kernel)(Parameters...), int blocks, int threads,
                     std::int64_t shared_bytes, Arguments... arguments) {
  const void* address = reinterpret_cast<const void*>(kernel);
  CUDA_CHECK(cudaFuncSetAttribute(address, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)));
  void* pointers[] = {static_cast<void*>(&arguments)...};
  CUDA_CHECK(cudaLaunchCooperativeKernel(address, dim3(static_cast<unsigned>(blocks)),
                                         dim3(static_cast<unsigned>(threads)), pointers,
                                         static_cast<std::size_t>(shared_bytes), stream.get()));
}

// Vectors of 16 bytes that each block owns.
int part_of(const GatherShape& shape) {
  const int vectors = kRows * shape.columns * 2 / static_cast<int>(sizeof(uint4));
  if (shape.blocks < 2 || shape.threads < 32 || shape.threads > 1024 || shape.threads % 32 != 0 ||
      vectors < shape.blocks || vectors % shape.blocks != 0) {
    throw std::invalid_argument("gather of " + std::to_string(shape.columns) + " columns over " +
                                std::to_string(shape.blocks) + " blocks of " + std::to_string(shape.threads) +
                                " threads: expected blocks that divide 4 * columns, whole warps");
  }
  return vectors / shape.blocks;
}

std::vector<std::uint32_t> words(const DeviceBuffer<uint4>& buffer) {
  std::vector<std::uint32_t> result;
  for (const uint4 value : buffer.to_host())
    result.insert(result.end(), {value.x, value.y, value.z, value.w});
  return result;
}

}  // namespace

bool has_clusters(int device) { return device_attribute(cudaDevAttrComputeCapabilityMajor, device) >= 9; }

double chip_barrier_seconds(Stream& stream, int sm_count, int repeats) {
  DeviceBuffer<std::uint32_t> counter(1);
  return fastest_seconds(
             stream,
             [&] {
               CUDA_CHECK(cudaMemsetAsync(counter.data(), 0, sizeof(std::uint32_t), stream.get()));
               launch_together(stream, repeat_chip_barrier, sm_count, 32, 0, repeats, counter.data());
             }) /
         repeats;
}

double cluster_barrier_seconds(Stream& stream, int blocks, int repeats) {
  return fastest_seconds(stream,
                         [&] { launch_cluster(stream, repeat_cluster_barrier, blocks, 128, 0, repeats); }) /
         repeats;
}

double remote_read_seconds(Stream& stream, int repeats) {
  DeviceBuffer<std::uint32_t> end(1);
  return fastest_seconds(stream,
                         [&] { launch_cluster(stream, follow_remotely, 2, 32, 0, repeats, end.data()); }) /
         repeats;
}

std::vector<std::uint32_t> expected_gather(const GatherShape& shape, int repeats) {
  const int part = part_of(shape);
  std::vector<std::uint32_t> matrix, all;
  for (int i = 0; i < part * shape.blocks; ++i) {
    const uint4 value = gathered(i / part, i % part, repeats - 1, shape.blocks);
    matrix.insert(matrix.end(), {value.x, value.y, value.z, value.w});
  }
  for (int block = 0; block < shape.blocks; ++block) all.insert(all.end(), matrix.begin(), matrix.end());
  return all;
}

GatherResult cluster_gather(Stream& stream, const GatherShape& shape, int repeats) {
  const int part = part_of(shape);
  if (shape.blocks > 16 || (shape.blocks & (shape.blocks - 1)) != 0)
    throw std::invalid_argument("cluster of " + std::to_string(shape.blocks) +
                                " blocks: expected 2, 4, 8 or 16");
  DeviceBuffer<uint4> out(std::int64_t{shape.blocks} * shape.blocks * part);
  out.fill_bytes(0xff);
  const std::int64_t shared_bytes = std::int64_t{3} * shape.blocks * part * 16;
  const int sends = (shape.blocks * part + shape.threads - 1) / shape.threads;
  if (sends > 16)
    throw std::invalid_argument("cluster gather of " + std::to_string(shape.columns) +
                                " columns: too few threads (" + std::to_string(shape.threads) +
                                "); expected 16 vectors a thread at most");
  const auto kernel = sends == 1   ? gather_in_cluster<1>
                      : sends == 2 ? gather_in_cluster<2>
                      : sends <= 4 ? gather_in_cluster<4>
                                   : gather_in_cluster<16>;
  const double seconds = fastest_seconds(stream, [&] {
    launch_cluster(stream, kernel, shape.blocks, shape.threads, shared_bytes, shape.blocks, part, repeats,
                   out.data());
  });
  return {seconds / repeats, words(out)};
}

GatherResult chip_gather(Stream& stream, const GatherShape& shape, int repeats) {
  const int part = part_of(shape);
  const std::int64_t vectors = std::int64_t{shape.blocks} * part;
  DeviceBuffer<uint4> packets(2 * vectors), out(shape.blocks * vectors);
  out.fill_bytes(0xff);
  const std::int64_t shared_bytes = 2 * vectors * 16;
  double fastest = 0;
  for (const auto kernel : {gather_over_chip<false>, gather_over_chip<true>}) {
    const double seconds = fastest_seconds(stream, [&] {
      CUDA_CHECK(cudaMemsetAsync(packets.data(), 0xff, static_cast<std::size_t>(packets.bytes()),
                                 stream.get()));  // 0xff: every tag set, and the first ones are not
      launch_together(stream, kernel, shape.blocks, shape.threads, shared_bytes, part, repeats,
                      packets.data(), out.data());
    });
    fastest = fastest == 0 ? seconds : std::min(fastest, seconds);
  }
  return {fastest / repeats, words(out)};
}

}  // namespace headroom::calibration
