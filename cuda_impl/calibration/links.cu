// Stores over the link between two devices: how many bytes a second, and how long one takes there and back.
#include <algorithm>
#include <limits>
#include <stdexcept>

#include "calibration/links.h"
#include "calibration/timing.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/stream.h"

namespace headroom::calibration {
namespace {

constexpr int kThreads = 256;
constexpr std::uint32_t kMostPolls = 1u << 22;  // a second or more

/// The device of the calling thread, until the end of the scope.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    CUDA_CHECK(cudaGetDevice(&before_));
    CUDA_CHECK(cudaSetDevice(device));
  }
  ~OnDevice() { (void)cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

__global__ void __launch_bounds__(kThreads) store_all(uint4* theirs, std::int64_t count) {
  const std::int64_t threads = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += threads)
    theirs[i] = make_uint4(1, 2, 3, 4);
}

__device__ bool comes(const std::uint32_t* mine, std::uint32_t expected) {
  for (std::uint32_t polls = 0; polls < kMostPolls; ++polls) {
    std::uint32_t value = 0;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(mine) : "memory");
    if (value == expected) return true;
  }
  return false;
}

/// One thread. The one that begins sends 1, 2, ..., and waits for each to come back. *failed: whether one did not.
__global__ void bounce(const std::uint32_t* mine, std::uint32_t* theirs, int repeats, bool begins,
                       std::uint32_t* failed) {
  *failed = 0;
  for (std::uint32_t i = 1; i <= static_cast<std::uint32_t>(repeats); ++i) {
    if (!begins && !comes(mine, i)) return void(*failed = i);
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(i) : "memory");
    if (begins && !comes(mine, i)) return void(*failed = i);
  }
}

/// A thread's place on one of the two devices.
struct Side {
  explicit Side(int which) : device(which), on(which), flag(32), failed(1) {}
  int device;
  OnDevice on;  // while the members below are made
  Stream stream;
  DeviceBuffer<std::uint32_t> flag, failed;
};

}  // namespace

std::optional<std::string> no_peer_access(int one, int other) {
  for (const auto& [from, to] : {std::pair(one, other), std::pair(other, one)}) {
    int can = 0;
    CUDA_CHECK(cudaDeviceCanAccessPeer(&can, from, to));
    if (can == 0)
      return "device " + std::to_string(from) + " has no access to the memory of device " +
             std::to_string(to);
    const OnDevice on(from);
    const cudaError_t code = cudaDeviceEnablePeerAccess(to, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled)
      (void)cudaGetLastError();
    else
      CUDA_CHECK(code);
  }
  return std::nullopt;
}

double link_store_rate(int from, int to, std::int64_t bytes) {
  const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(uint4));
  std::optional<DeviceBuffer<uint4>> theirs;
  {
    const OnDevice there(to);
    theirs.emplace(count);
  }
  const OnDevice here(from);
  Stream stream;
  const int blocks = 8 * device_attribute(cudaDevAttrMultiProcessorCount, from);
  const double seconds = fastest_seconds(stream, [&] {
    store_all<<<static_cast<unsigned>(blocks), kThreads, 0, stream.get()>>>(theirs->data(), count);
    CUDA_CHECK(cudaGetLastError());
  });
  return static_cast<double>(count) * sizeof(uint4) / seconds;
}

double link_round_trip_seconds(int one, int other, int repeats) {
  const OnDevice back(one);
  Side second(other);
  Side first(one);
  const auto launch = [&](Side& side, Side& to, bool begins) {
    CUDA_CHECK(cudaSetDevice(side.device));
    bounce<<<1, 1, 0, side.stream.get()>>>(side.flag.data(), to.flag.data(), repeats, begins,
                                           side.failed.data());
    CUDA_CHECK(cudaGetLastError());
  };
  double fastest = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < 5; ++attempt) {
    for (Side* side : {&first, &second}) {
      CUDA_CHECK(cudaSetDevice(side->device));
      side->flag.fill_bytes(0);
    }
    launch(second, first, false);
    CUDA_CHECK(cudaSetDevice(one));
    Event start, end;
    start.record(first.stream);
    launch(first, second, true);
    end.record(first.stream);
    const double seconds = seconds_between(start, end);
    second.stream.synchronize();
    for (const Side* side : {&first, &second})
      if (side->failed.to_host().front() != 0)
        throw std::runtime_error("calibration: a store from device to device did not arrive");
    fastest = std::min(fastest, seconds);
  }
  return fastest / repeats;
}

}  // namespace headroom::calibration
