// Which of several ways to train a workload is the fastest: each is set up and timed, and one stays.
//
// Nothing here knows of a GPU: a candidate is a function that makes a trainer, and a trainer says how long its steps took.
// At most two trainers are held at once: the fastest so far, and the one that it is compared with.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/choice.h"
#include "core/trainer.h"

namespace headroom::choice {

struct Candidate {
  std::string backend;  ///< its name
  /// Throws UnsupportedError if it does not take the workload, and anything else if it fails.
  std::function<std::unique_ptr<Trainer>()> set_up;
  /// Asked just before set_up(): why it is not even tried, such as more memory than is free. Null: nothing speaks against it.
  std::function<std::optional<std::string>()> out_of_reach = nullptr;
};

struct Rule {
  double lead = 0.03;  ///< how much faster a later candidate has to be than an earlier one to take its place
  int rounds = 3;      ///< of four blocks: one, the other, the other, the one
  double block_seconds = 2e-3;  ///< least length of a block
  double far_behind =
      1.5;  ///< a candidate whose first block is so many times slower is not timed any further
  double rounds_seconds = 2;  ///< after so long no further round begins
  double most_seconds = 60;   ///< of all measuring; what would probably take longer is not tried
};

/// What measuring needs of the world.
struct Surroundings {
  std::function<double()> seconds;  ///< of a steady clock
  /// Asked after a candidate failed: why nothing can run on the device any more; nullopt if it can.
  std::function<std::optional<std::string>()> broken;
};

/// A candidate left the device, or this process's view of it, unusable, so that no other can be tried. `choice` holds what was
/// found out until then, with nothing taken.
class DeviceLostError : public DeviceStuckError {
 public:
  DeviceLostError(const std::string& message, Choice so_far)
      : DeviceStuckError(message), choice(std::move(so_far)) {}
  Choice choice;
};

/// What the `left_out` of the candidate begins with that it was lost with.
inline constexpr const char* kLost = "lost the device: ";

struct Measured {
  std::unique_ptr<Trainer> trainer;  ///< has trained
  Choice choice;
};

/// Sets up the candidates one after the other and keeps the fastest: a candidate takes the place of the one before it if its median
/// step over interleaved blocks is shorter by more than `lead`. One that fails is left out with its message. Where only one
/// is left it is not timed. Throws UnsupportedError with all reasons if no candidate takes the workload, OutOfMemoryError or
/// std::runtime_error if one that does has failed and no other is left, and DeviceLostError.
Measured measure(std::span<const Candidate> candidates, const Rule& rule, const Surroundings& surroundings);

}  // namespace headroom::choice
