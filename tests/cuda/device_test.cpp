// The CUDA wrappers: errors, memory that is counted, and clean answers on a machine without a GPU.
#include "device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "device/check.h"
#include "device/launch_pace.h"
#include "device/memory.h"
#include "device/step_watch.h"
#include "device/stream.h"

namespace headroom {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

#define HEADROOM_NEEDS_DEVICE() \
  if (const auto missing = device_missing(0)) GTEST_SKIP() << *missing

template <class Error>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Check, ErrorShowsTheCallItsPlaceAndCudasWords) {
  EXPECT_THAT(
      message_of<CudaError>([] { check_cuda(cudaErrorInvalidValue, "call(1)", "/a/b/c/file.cu", 7); }),
      AllOf(HasSubstr("call(1)"), HasSubstr("c/file.cu:7"), HasSubstr("cudaErrorInvalidValue"),
            HasSubstr("invalid argument"), testing::Not(HasSubstr("/a/b"))));
}

TEST(Check, OutOfMemoryHasItsOwnType) {
  EXPECT_THROW(check_cuda(cudaErrorMemoryAllocation, "call", "file", 1), OutOfMemoryError);
}

/// Work that is in a stream's way until it is let go.
class Obstacle {
 public:
  explicit Obstacle(const Stream& stream) { CUDA_CHECK(cudaLaunchHostFunc(stream.get(), wait, &gone_)); }
  void remove() { gone_ = true; }

 private:
  static void wait(void* gone) {
    while (!*static_cast<std::atomic<bool>*>(gone)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::atomic<bool> gone_ = false;
};

TEST(StepWatch, ThrowsWhereNoStepEndsForTooLong) {
  HEADROOM_NEEDS_DEVICE();
  DeviceBuffer<std::int64_t> counter(1);
  counter.copy_from(std::vector<std::int64_t>{7});
  Stream stream;
  Event end;
  StepWatch watch("cuda-fused", 0.1);
  Obstacle obstacle(stream);
  end.record(stream);
  EXPECT_THAT(message_of<DeviceStuckError>([&] { watch.wait(end, counter.data()); }),
              AllOf(StartsWith("cuda-fused: step 7 was not done after 0.1 s")));
  obstacle.remove();
  EXPECT_NO_THROW(watch.wait(end, counter.data()));
}

TEST(StepWatch, WaitsForManyStepsAsLongAsTheyGoOn) {
  HEADROOM_NEEDS_DEVICE();
  DeviceBuffer<std::int64_t> counter(1);
  const std::vector<std::int64_t> numbers = {1, 2, 3, 4, 5, 6, 7, 8};
  DeviceBuffer<std::int64_t> source(8);
  source.copy_from(numbers);
  Stream stream;
  Event end;
  for (int step = 0; step < 8; ++step) {
    CUDA_CHECK(cudaLaunchHostFunc(
        stream.get(), [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(60)); }, nullptr));
    CUDA_CHECK(cudaMemcpyAsync(counter.data(), source.data() + step, sizeof(std::int64_t),
                               cudaMemcpyDeviceToDevice, stream.get()));
  }
  end.record(stream);
  StepWatch watch("cuda-fused", 0.15);
  EXPECT_NO_THROW(watch.wait(end, counter.data()));
  EXPECT_EQ(counter.to_host()[0], 8);
}

TEST(DriverVersion, IsReadFromBothKindsOfText) {
  EXPECT_EQ(parse_driver_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Oct 7"),
            "580.159.04");
  EXPECT_EQ(
      parse_driver_version("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release"),
      "570.86.15");
  EXPECT_EQ(parse_driver_version("something else"), "");
}

TEST(LaunchPace, FollowsTheLastTiming) {
  LaunchPace pace(16, 4096);
  EXPECT_EQ(pace.steps(), 16);
  EXPECT_FALSE(pace.timed());
  EXPECT_FALSE(pace.worth_timing(15));
  EXPECT_TRUE(pace.worth_timing(16));
  pace.learn(0.016, 16);  // 1 ms a step
  EXPECT_TRUE(pace.timed());
  EXPECT_EQ(pace.steps(), 50);
  pace.learn(1.0, 2);  // one is more than a launch is to take
  EXPECT_EQ(pace.steps(), 1);
  pace.learn(0.0, 16);
  EXPECT_EQ(pace.steps(), 4096);
}

TEST(LaunchPace, RunsEveryStepAndLearnsFromTheFirstLaunch) {
  LaunchPace pace(16, 4096);
  std::vector<std::pair<std::int64_t, std::int64_t>> launches;
  const auto launch = [&](std::int64_t done, std::int64_t steps) { launches.emplace_back(done, steps); };
  const auto seconds = [&] {
    return 1e-3 * static_cast<double>(launches.back().first + launches.back().second);
  };
  EXPECT_DOUBLE_EQ(pace.run(120, launch, seconds), 0.12);
  EXPECT_EQ(launches,
            (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 16}, {16, 50}, {66, 50}, {116, 4}}));
}

TEST(DeviceMissing, SaysThatMinusOneIsNoDevice) { EXPECT_EQ(device_missing(-1), "no CUDA device"); }

TEST(DeviceMissing, NamesAnIndexThatIsTooLarge) {
  const auto reason = device_missing(1000);
  ASSERT_TRUE(reason.has_value());
  EXPECT_THAT(*reason, HasSubstr("no CUDA device"));
}

TEST(DeviceInfo, ThrowsUnsupportedWhereTheDeviceIsMissing) {
  EXPECT_THROW(device_info(1000), UnsupportedError);
  EXPECT_THROW(use_device(-1), UnsupportedError);
}

TEST(DeviceInfo, SmallNamesTheDevice) {
  HEADROOM_NEEDS_DEVICE();
  const DeviceInfo info = device_info(0);
  EXPECT_FALSE(info.name.empty());
  EXPECT_THAT(info.uuid, StartsWith("GPU-"));
  EXPECT_EQ(info.uuid.size(), 40u);
  EXPECT_FALSE(info.driver.empty());
  EXPECT_GT(info.sm_count, 0);
  EXPECT_GT(info.memory_bytes, 0);
  EXPECT_GT(info.l2_bytes, 0);
}

TEST(DeviceBuffer, OfNothingIsNothing) {
  DeviceBuffer<float> empty(0);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_TRUE(empty.to_host().empty());
}

TEST(DeviceBuffer, SmallCopiesThereAndBackAndMoves) {
  HEADROOM_NEEDS_DEVICE();
  const std::vector<int> values = {3, 1, 4, 1, 5};
  DeviceBuffer<int> buffer(5);
  buffer.copy_from(values);
  DeviceBuffer<int> moved = std::move(buffer);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(moved.to_host(), values);
  EXPECT_THROW(moved.copy_from(std::vector<int>{1}), std::invalid_argument);
}

TEST(DeviceMemory, SmallCountsWhatIsHeldAndThePeak) {
  HEADROOM_NEEDS_DEVICE();
  const std::int64_t before = DeviceMemory::held_bytes();
  DeviceMemory::reset_peak();
  {
    DeviceBuffer<double> buffer(1000);
  }
  EXPECT_EQ(DeviceMemory::held_bytes(), before);
  EXPECT_EQ(DeviceMemory::peak_bytes(), before + 8000);
}

TEST(DeviceMemory, TooLargeARequestIsOutOfMemoryAndTheNextOneWorks) {
  HEADROOM_NEEDS_DEVICE();
  EXPECT_THAT(message_of<OutOfMemoryError>([] { DeviceBuffer<char> buffer(std::int64_t{1} << 50); }),
              HasSubstr("1125899906842624 bytes"));
  DeviceBuffer<int> buffer(1);
  buffer.fill_bytes(0);
  EXPECT_EQ(buffer.to_host(), std::vector<int>{0});
}

TEST(Graph, SmallReplaysWhatWasCaptured) {
  HEADROOM_NEEDS_DEVICE();
  Stream stream;
  DeviceBuffer<unsigned char> buffer(16);
  buffer.fill_bytes(0);
  Graph graph =
      Graph::capture(stream, [&] { CUDA_CHECK(cudaMemsetAsync(buffer.data(), 7, 16, stream.get())); });
  stream.synchronize();
  EXPECT_EQ(buffer.to_host(), std::vector<unsigned char>(16, 0));
  graph.launch(stream);
  stream.synchronize();
  EXPECT_EQ(buffer.to_host(), std::vector<unsigned char>(16, 7));
}

TEST(Graph, SmallCaptureThatThrowsLeavesTheStreamUsable) {
  HEADROOM_NEEDS_DEVICE();
  Stream stream;
  EXPECT_THROW(Graph::capture(stream, [] { throw std::runtime_error("mine"); }), std::runtime_error);
  Event start, end;
  start.record(stream);
  end.record(stream);
  EXPECT_GE(seconds_between(start, end), 0.0);
}

}  // namespace
}  // namespace headroom
