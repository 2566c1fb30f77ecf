// A trainer of steps that are captured in graphs, several in a graph. A counter on the device says which step is next, so that a
// graph trains other steps every time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "device/kept_losses.h"
#include "device/memory.h"
#include "device/step_watch.h"
#include "device/stream.h"

namespace headroom {

class GraphTrainer : public Trainer {
 public:
  Timing train(std::int64_t first_step, std::int64_t count) final;
  std::vector<float> losses(std::int64_t first_step, std::int64_t count) final;
  std::int64_t peak_device_bytes() final { return DeviceMemory::peak_bytes(); }

 protected:
  /// Device memory that is allocated from here on counts for peak_device_bytes(). `backend` is for errors.
  GraphTrainer(const Workload& workload, std::string backend);

  /// Queues one step, from the batch that the device's counter names to the counter's next value.
  virtual void queue_step() = 0;
  /// Sets the device's counter.
  virtual void set_step(std::int64_t step) = 0;
  /// The number of the step in device memory, of 8 bytes.
  virtual const void* counter() const = 0;
  /// Captures a graph for each of these numbers of steps, the largest first and 1 the last.
  void capture_steps(const std::vector<int>& steps_of_a_graph);
  /// Throws InputError for parameters of another network.
  void require_widths_of(const Parameters& parameters) const;

  struct StepsGraph {
    int steps;
    Graph graph;
  };

  const std::vector<int> widths_;
  Stream stream_;
  KeptLosses losses_;
  std::vector<StepsGraph> graphs_;
  std::int64_t next_step_ = 0;  ///< what the device's counter says

 private:
  StepWatch watch_;
  Event begin_, end_;
};

}  // namespace headroom
