// Streams, events and graphs that end with their owner. Move-only; destructors never throw.
#pragma once

#include <utility>

#include "device/check.h"

namespace headroom {

/// A stream that does not wait for the default stream.
class Stream {
 public:
  Stream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void synchronize() { CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  enum class Kind { kTiming, kOrder };  ///< kOrder: cheaper, no time stamp
  explicit Event(Kind kind = Kind::kTiming) {
    CUDA_CHECK(
        cudaEventCreateWithFlags(&event_, kind == Kind::kTiming ? cudaEventDefault : cudaEventDisableTiming));
  }
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }
  void record(const Stream& stream) { CUDA_CHECK(cudaEventRecord(event_, stream.get())); }
  void synchronize() { CUDA_CHECK(cudaEventSynchronize(event_)); }
  bool has_happened() const {
    const cudaError_t code = cudaEventQuery(event_);
    if (code != cudaErrorNotReady) CUDA_CHECK(code);
    return code == cudaSuccess;
  }
  /// Work queued on `stream` from now on waits for this event.
  void hold(const Stream& stream) const { CUDA_CHECK(cudaStreamWaitEvent(stream.get(), event_, 0)); }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Seconds of device time between two recorded timing events; waits for `end`.
inline double seconds_between(const Event& start, Event& end) {
  end.synchronize();
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.get(), end.get()));
  return 1e-3 * static_cast<double>(milliseconds);
}

/// Work recorded once from a stream and launched as a whole many times.
class Graph {
 public:
  Graph() = default;
  /// Records what `work` queues on `stream` (and on streams that wait for it) without running it.
  template <class Work>
  static Graph capture(Stream& stream, Work&& work) {
    CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      std::forward<Work>(work)();
    } catch (...) {
      // The capture has to end before the stream can be used again; the first error is the one worth
      // reporting.
      (void)cudaStreamEndCapture(stream.get(), &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      (void)cudaGetLastError();
      throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
    Graph result;
    const cudaError_t code = cudaGraphInstantiate(&result.graph_, graph, 0);
    (void)cudaGraphDestroy(graph);
    check_cuda(code, "cudaGraphInstantiate", __FILE__, __LINE__);
    return result;
  }
  ~Graph() {
    if (graph_ != nullptr) (void)cudaGraphExecDestroy(graph_);
  }
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(Stream& stream) { CUDA_CHECK(cudaGraphLaunch(graph_, stream.get())); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace headroom
