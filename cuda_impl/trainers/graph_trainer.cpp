#include "trainers/graph_trainer.h"

#include <utility>

#include "core/error.h"
#include "core/host_clock.h"

namespace headroom {

GraphTrainer::GraphTrainer(const Workload& workload, std::string backend)
    : widths_(workload.model.widths), watch_(std::move(backend), StepWatch::seconds_of_a_step(workload)) {
  DeviceMemory::reset_peak();
}

Timing GraphTrainer::train(std::int64_t first_step, std::int64_t count) {
  KeptLosses::require_steps(first_step, count);
  const HostClock clock;
  begin_.record(stream_);
  if (first_step != next_step_) set_step(first_step);
  std::int64_t left = count;
  for (StepsGraph& some : graphs_)
    for (; left >= some.steps; left -= some.steps) some.graph.launch(stream_);
  end_.record(stream_);
  watch_.wait(end_, static_cast<const std::int64_t*>(counter()));
  const double device_seconds = seconds_between(begin_, end_);
  losses_.trained(first_step, count);
  next_step_ = first_step + count;
  return clock.timing(device_seconds);
}

std::vector<float> GraphTrainer::losses(std::int64_t first_step, std::int64_t count) {
  return losses_.read(first_step, count, stream_);
}

void GraphTrainer::capture_steps(const std::vector<int>& steps_of_a_graph) {
  graphs_.clear();
  for (const int steps : steps_of_a_graph)
    graphs_.push_back({steps, Graph::capture(stream_, [&] {
                         for (int step = 0; step < steps; ++step) queue_step();
                       })});
}

void GraphTrainer::require_widths_of(const Parameters& parameters) const {
  if (parameters.widths() != widths_) throw InputError("set_parameters: parameters of another network");
}

}  // namespace headroom
