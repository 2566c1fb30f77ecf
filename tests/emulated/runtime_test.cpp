// The CUDA runtime on the machine that the CPU plays: what is done in a stream is done in its order.
#include "runtime.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "machine.h"

namespace headroom::emulated {

/// The tests here launch nothing by a pointer.
std::function<void()> call_of(const void*, const void*) {
  return [] {};
}

namespace {

/// A launch that may wait for other devices, so it is put off until they have theirs.
void launch_beside_peers(const std::function<void()>& thread) {
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.attrs = &cooperative;
  config.numAttrs = 1;
  ASSERT_EQ(launch_thread(config, thread), cudaSuccess);
}

/// What a put-off launch sees of memory that `next` changes behind it in the same stream.
unsigned char seen_by_put_off_launch(const std::function<void(unsigned char*)>& next) {
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  unsigned char* memory = nullptr;
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), 1), cudaSuccess);
  *memory = 1;
  unsigned char seen = 0;
  launch_beside_peers([&] { seen = *memory; });
  EXPECT_EQ(seen, 0) << "the launch was not put off";
  next(memory);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  return seen;
}

TEST(EmulatedRuntime, WhatIsSetBehindALaunchIsSetAfterIt) {
  EXPECT_EQ(seen_by_put_off_launch([](unsigned char* memory) {
              EXPECT_EQ(cudaMemsetAsync(memory, 2, 1, nullptr), cudaSuccess);
            }),
            1);
  EXPECT_EQ(
      seen_by_put_off_launch([](unsigned char* memory) { EXPECT_EQ(cudaMemset(memory, 2, 1), cudaSuccess); }),
      1);
}
TEST(EmulatedRuntime, WhatIsCopiedBehindALaunchIsCopiedAfterIt) {
  const unsigned char two = 2;
  EXPECT_EQ(seen_by_put_off_launch([&](unsigned char* memory) {
              EXPECT_EQ(cudaMemcpyAsync(memory, &two, 1, cudaMemcpyHostToDevice, nullptr), cudaSuccess);
            }),
            1);
}
TEST(EmulatedRuntime, HostWorkBehindALaunchIsDoneAfterIt) {
  EXPECT_EQ(seen_by_put_off_launch([](unsigned char* memory) {
              EXPECT_EQ(launch_host([memory] { *memory = 2; }), cudaSuccess);
            }),
            1);
}
TEST(EmulatedRuntime, AGraphBehindALaunchRunsAfterIt) {
  EXPECT_EQ(seen_by_put_off_launch([](unsigned char* memory) {
              cudaGraph_t graph = nullptr;
              cudaGraphExec_t executable = nullptr;
              EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal), cudaSuccess);
              EXPECT_EQ(launch_host([memory] { *memory = 2; }), cudaSuccess);
              EXPECT_EQ(cudaStreamEndCapture(nullptr, &graph), cudaSuccess);
              EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
              EXPECT_EQ(cudaGraphLaunch(executable, nullptr), cudaSuccess);
              EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
              EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
            }),
            1);
}
TEST(EmulatedRuntime, MemoryIsThereUntilTheLaunchThatUsesItIsDone) {
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaSuccess);
  bool is_done = false;
  launch_beside_peers([&] { is_done = true; });
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_TRUE(is_done);
}

}  // namespace
}  // namespace headroom::emulated
