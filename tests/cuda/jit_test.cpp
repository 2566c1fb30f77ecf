// Kernels compiled at run time, loaded and launched: alone, in clusters, cooperatively, and overlapping the kernel before. By
// each compiler that this machine has.
//
// HEADROOM_TEST_CUBINS names a folder in which compiled kernels are kept, so that what was compiled on a machine without a
// GPU runs on one without that compiler.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/stream.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "jit/digest.h"
#include "jit/kernel.h"

namespace headroom::jit {
namespace {

constexpr char kClusterSum[] = R"(
// values [blocks], sums [blocks]: each block reads what the others of its cluster have in shared memory.
__global__ void cluster_sum(const int* values, int* sums) {
  __shared__ int own;
  own = values[blockIdx.x];
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  const std::uint32_t here = static_cast<std::uint32_t>(__cvta_generic_to_shared(&own));
  int sum = 0;
  for (std::uint32_t rank = 0; rank < CLUSTER; ++rank) {
    std::uint32_t there;
    int value;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
    sum += value;
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  sums[blockIdx.x] = sum;
})";

constexpr char kGridBarrier[] = R"(
// Each round every block writes its number, waits for all blocks, and adds what the next block wrote.
struct Rounds { std::uint32_t* arrived; int* written; int* sums; int rounds; };
__global__ void grid_barrier(const __grid_constant__ Rounds all) {
  const int block = blockIdx.x, blocks = gridDim.x;
  int sum = 0;
  for (int round = 0; round < all.rounds; ++round) {
    atomicExch(all.written + block, block + round);
    for (int half = 1; half <= 2; ++half) {
      __threadfence();
      atomicAdd(all.arrived, 1u);
      const std::uint32_t expected = blocks * (2 * round + half);
      while (atomicAdd(all.arrived, 0u) < expected) {
      }
      __threadfence();
      if (half == 1) sum += atomicAdd(all.written + (block + 1) % blocks, 0);
    }
  }
  all.sums[block] = sum;
})";

constexpr char kDependent[] = R"(
// Lets the next kernel begin at once, and only then writes: one that did not wait would read what was there before.
__global__ void dependent(int* values, int add) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const unsigned long long begin = headroom::machine::nanoseconds();
  while (headroom::machine::nanoseconds() - begin < 20000) {
  }
  const int at = blockIdx.x * blockDim.x + threadIdx.x, count = gridDim.x * blockDim.x;
  const int next = values[count - 1 - at];
  __syncthreads();
  values[count + at] = next + add;
})";

constexpr char kManyShared[] = R"(
__global__ void many_shared(int* sum, int count) {
  extern __shared__ int values[];
  for (int i = threadIdx.x; i < count; i += blockDim.x) values[i] = i;
  __syncthreads();
  int own = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) own += values[count - 1 - i];
  atomicAdd(sum, own);
})";

class LoadedKernel : public testing::TestWithParam<const char*> {
 protected:
  /// Skips the test without a GPU, or without the compiler; compiles first, so that the folder of cubins is filled.
  Kernel load(const char* kernel, const char* text, const std::string& cluster = "1") {
    Request request;
    request.name = kernel;
    request.headers = {"machine/wait.cuh"};
    request.text = text;
    request.kernel = kernel;
    request.constants = {{"CLUSTER", cluster}};
    return Kernel(cubin_of(request));
  }
  Cubin cubin_of(const Request& request) {
    const char* folder = std::getenv("HEADROOM_TEST_CUBINS");
    const Cache kept(folder == nullptr ? "" : folder);
    const std::string key = sha256(GetParam() + program_text(request));
    std::optional<Cubin> cubin = kept.find(key);
    if (!cubin) {
      const char* other = std::string(GetParam()) == "nvcc" ? "HEADROOM_NVRTC" : "HEADROOM_NVCC";
      const char* value = std::getenv(other);
      const std::string before = value == nullptr ? "" : value;
      setenv(other, "", 1);
      try {
        const std::unique_ptr<Compiler> compiler = find_compiler();
        cubin = compiler->compile(request, {});
        kept.keep(key, *cubin);
      } catch (const UnsupportedError&) {
      }
      value == nullptr ? unsetenv(other) : setenv(other, before.c_str(), 1);
    }
    if (!cubin)
      throw UnsupportedError(std::string("no ") + GetParam() + " here, and no cubin of it was kept");
    if (const auto missing = device_missing(0)) throw UnsupportedError(*missing);
    if (device_attribute(cudaDevAttrComputeCapabilityMajor, 0) != 9)
      throw UnsupportedError("needs compute capability 9.0");
    use_device(0);
    return *cubin;
  }
  /// `test` is skipped where something is missing.
  template <class Test>
  void run(const Test& test) {
    try {
      test();
    } catch (const UnsupportedError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Compilers, LoadedKernel, testing::Values("nvcc", "nvrtc"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(LoadedKernel, SmallClustersReadEachOthersSharedMemory) {
  run([&] {
    constexpr int kCluster = 4, kClusters = 33;
    const Kernel kernel = load("cluster_sum", kClusterSum, std::to_string(kCluster));
    std::vector<int> values(kCluster * kClusters);
    std::iota(values.begin(), values.end(), 1);
    DeviceBuffer<int> in(std::ssize(values)), out(std::ssize(values));
    in.copy_from(values);
    out.fill_bytes(0xff);
    Stream stream;
    kernel.launch({.blocks = kCluster * kClusters, .threads = 1, .cluster = kCluster}, stream.get(),
                  in.data(), out.data());
    stream.synchronize();
    const std::vector<int> sums = out.to_host();
    for (int block = 0; block < kCluster * kClusters; ++block) {
      const int first = block / kCluster * kCluster;
      EXPECT_EQ(sums[static_cast<std::size_t>(block)], 4 * first + 10) << block;
    }
  });
}

TEST_P(LoadedKernel, SmallCooperativeLaunchesMeetAtABarrierOfAllBlocks) {
  run([&] {
    struct Rounds {
      std::uint32_t* arrived;
      int* written;
      int* sums;
      int rounds;
    };
    const Kernel kernel = load("grid_barrier", kGridBarrier);
    const int blocks = device_attribute(cudaDevAttrMultiProcessorCount, 0);
    constexpr int kRounds = 20;
    DeviceBuffer<std::uint32_t> arrived(1);
    DeviceBuffer<int> written(blocks), sums(blocks);
    arrived.fill_bytes(0);
    written.fill_bytes(0xff);
    sums.fill_bytes(0xff);
    Stream stream;
    kernel.launch({.blocks = blocks, .threads = 1, .is_cooperative = true}, stream.get(),
                  Rounds{arrived.data(), written.data(), sums.data(), kRounds});
    stream.synchronize();
    const std::vector<int> found = sums.to_host();
    for (int block = 0; block < blocks; ++block)
      EXPECT_EQ(found[static_cast<std::size_t>(block)],
                kRounds * ((block + 1) % blocks) + kRounds * (kRounds - 1) / 2)
          << block;
  });
}

TEST_P(LoadedKernel, CooperativeLaunchesOfMoreBlocksThanFitAreRefused) {
  run([&] {
    const Kernel kernel = load("grid_barrier", kGridBarrier);
    Stream stream;
    struct Rounds {
      std::uint32_t* arrived;
      int* written;
      int* sums;
      int rounds;
    };
    EXPECT_THROW(
        kernel.launch({.blocks = 1 << 20, .threads = 1024, .is_cooperative = true}, stream.get(), Rounds{}),
        CudaError);
  });
}

TEST_P(LoadedKernel, SmallDependentLaunchesWaitForTheKernelBefore) {
  run([&] {
    const Kernel kernel = load("dependent", kDependent);
    constexpr int kThreads = 128, kBlocks = 8, kCount = kThreads * kBlocks, kLaunches = 6;
    std::vector<int> values(kCount * (kLaunches + 1), -1);
    std::iota(values.begin(), values.begin() + kCount, 0);
    DeviceBuffer<int> buffer(std::ssize(values));
    buffer.copy_from(values);
    Stream stream;
    // Also in a graph, where such launches become edges of their own kind.
    const auto queue = [&] {
      for (int launch = 0; launch < kLaunches; ++launch)
        kernel.launch({.blocks = kBlocks, .threads = kThreads, .overlaps_before = true}, stream.get(),
                      buffer.data() + launch * kCount, launch);
    };
    queue();
    stream.synchronize();
    const std::vector<int> alone = buffer.to_host();
    buffer.copy_from(values);
    Graph graph = Graph::capture(stream, queue);
    graph.launch(stream);
    stream.synchronize();
    EXPECT_EQ(buffer.to_host(), alone);
    for (int at = 0; at < kCount; ++at)
      EXPECT_EQ(alone[static_cast<std::size_t>(kCount * kLaunches + at)], at + 15) << at;
  });
}

TEST_P(LoadedKernel, MayHaveMoreSharedMemoryThanIsUsual) {
  run([&] {
    const Kernel kernel = load("many_shared", kManyShared);
    constexpr int kCount = 50000;
    kernel.allow_shared_bytes(kCount * 4);
    DeviceBuffer<int> sum(1);
    sum.fill_bytes(0);
    Stream stream;
    kernel.launch({.threads = 256, .shared_bytes = kCount * 4}, stream.get(), sum.data(), kCount);
    stream.synchronize();
    EXPECT_EQ(sum.to_host()[0], kCount * (kCount / 2) - kCount / 2);
    EXPECT_THROW(kernel.allow_shared_bytes(1 << 20), UnsupportedError);
  });
}

}  // namespace
}  // namespace headroom::jit
