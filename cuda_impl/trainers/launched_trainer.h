// A trainer whose launches another one may queue, and wait for: so it can be a rank of a RankedTrainer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/trainer.h"

namespace headroom {

class LaunchedTrainer : public Trainer {
 protected:
  friend class RankedTrainer;

  /// Queues a launch of steps first_step to first_step + steps - 1.
  virtual void launch(std::int64_t first_step, std::int64_t steps) = 0;
  /// Queue the marks of a time, before the first launch and behind the last one so far.
  virtual void mark_begin() = 0;
  virtual void mark_end() = 0;
  /// Waits for the second mark. Seconds between both. Throws CudaError if a launch ended with an error.
  virtual double marked_seconds() = 0;
  /// These steps have been trained.
  virtual void trained(std::int64_t first_step, std::int64_t count) = 0;
  /// What a wait that ran out has left, in words. The launch was given up then, and so is the trainer.
  virtual std::optional<std::string> given_up() const = 0;
};

}  // namespace headroom
