// A bound on waits that costs kernels nothing: the host looks at how far they are.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/workload.h"
#include "device/check.h"
#include "device/stream.h"

namespace headroom {

/// Waits for steps that are queued in a stream, as long as they go on. Kernels whose barriers have no bound of their own
/// never end after a fault of their protocol; nothing but the end of the process ends them then.
class StepWatch {
 public:
  /// `seconds`: how long a step may take.
  StepWatch(std::string backend, double seconds) : backend_(std::move(backend)), seconds_(seconds) {}

  /// Far more than a step takes on the slowest GPU that runs it: 10 s, and what its operations take at 0.1 TFLOP/s.
  static double seconds_of_a_step(const Workload& workload) { return 10 + 1e-11 * workload.flops_per_step(); }

  /// Returns when `end` has happened. `counter`: in device memory; kernels write the number of each step there. Throws
  /// DeviceStuckError if no step has ended for as long as one may take.
  template <class Counter>
  void wait(const Event& end, const Counter* counter) {
    static_assert(sizeof(Counter) == sizeof(std::int64_t));
    std::int64_t step = -1;  // what the counter said last
    Clock::time_point since = Clock::now();
    while (!end.has_happened()) {
      const Clock::time_point now = Clock::now();
      if (now - since < seconds_) continue;
      const std::int64_t next = read_counter(end, counter);
      if (next == step && !end.has_happened())
        throw DeviceStuckError(backend_ + ": step " + std::to_string(step) + " was not done after " +
                               shown(seconds_.count()) + " s; the kernel is given up, with its process");
      step = next;
      since = now;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Beside the steps, which may be stuck. -1 if `end` happens first.
  std::int64_t read_counter(const Event& end, const void* counter) {
    CUDA_CHECK(
        cudaMemcpyAsync(seen_.get(), counter, sizeof(std::int64_t), cudaMemcpyDeviceToHost, beside_.get()));
    read_.record(beside_);
    while (!read_.has_happened())
      if (end.has_happened()) return -1;
    return *seen_;
  }

  static std::string shown(double seconds) {
    std::ostringstream text;
    text << seconds;
    return text.str();
  }
  struct FreeHost {
    void operator()(std::int64_t* value) const { (void)cudaFreeHost(value); }
  };
  static std::unique_ptr<std::int64_t, FreeHost> page_locked() {
    void* value = nullptr;
    CUDA_CHECK(cudaMallocHost(&value, sizeof(std::int64_t)));
    return std::unique_ptr<std::int64_t, FreeHost>(static_cast<std::int64_t*>(value));
  }

  std::string backend_;
  std::chrono::duration<double> seconds_;
  std::unique_ptr<std::int64_t, FreeHost> seen_ =
      page_locked();  // a copy to other memory would make the host wait
  Stream beside_;
  Event read_{Event::Kind::kOrder};
};

}  // namespace headroom
