// The contract of every backend: one network, ready to train on the workload's devices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/choice.h"
#include "core/error.h"
#include "core/parameters.h"
#include "core/record.h"

namespace headroom {

/// Times of one block of consecutive steps, in seconds.
struct Timing {
  double device_seconds =
      0;  ///< between two device events (CPU backends, JAX: a steady clock); the longest of several devices'
  double wall_seconds = 0;  ///< steady clock, from the first call to the end of the last step
  double cpu_seconds = 0;   ///< all threads of the worker process
};

class Trainer {
 public:
  virtual ~Trainer() = default;

  /// Trains steps first_step to first_step + count - 1; step s uses batch s mod batches, of several devices the joined one.
  /// Returns when the devices have finished them.
  virtual Timing train(std::int64_t first_step, std::int64_t count) = 0;

  /// The loss of the (joined) batch before the update of each step. Kept for the last kKeptLosses trained steps.
  virtual std::vector<float> losses(std::int64_t first_step, std::int64_t count) = 0;
  static constexpr std::int64_t kKeptLosses = std::int64_t{1} << 20;

  /// The same bits on all devices: a trainer on several throws where they differ, with a line that says where.
  virtual Parameters parameters() = 0;
  virtual void set_parameters(const Parameters& parameters) = 0;
  /// The optimizer's slots (core/workload.h). A trainer of an optimizer that has some says so in both.
  virtual std::vector<Parameters> slots() { return {}; }
  virtual void set_slots(const std::vector<Parameters>& slots) {
    if (!slots.empty()) throw InputError("set_slots: this trainer's optimizer has no slots");
  }
  /// Between any two steps. train() says which step is next, so that training can go on from any state.
  State state() { return {parameters(), slots()}; }
  void set_state(const State& state) {
    set_parameters(state.parameters);
    set_slots(state.slots);
  }

  /// Device bytes held by this trainer at its peak, of the device that holds most; -1 if not known.
  virtual std::int64_t peak_device_bytes() { return -1; }
  /// Of a trainer that compiled code when it was made: whether it found that code. nullopt: it compiles nothing.
  virtual std::optional<SetupCache> setup_cache() { return std::nullopt; }
  /// Of a trainer that is one of several that could have been made.
  virtual std::optional<Choice> choice() { return std::nullopt; }
  /// What a reader of the record should know, such as which strategy was picked; empty for nothing.
  virtual std::string note() { return {}; }
};

}  // namespace headroom
