// A trainer of a kernel that stays on the chip over many steps: it cuts training into launches, since no launch is to hold the GPU
// for more than a tenth of a second. How many steps a launch may take follows from how long the last one took.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/parameters.h"
#include "device/kept_losses.h"
#include "device/launch_pace.h"
#include "device/memory.h"
#include "device/stream.h"
#include "trainers/launched_trainer.h"

namespace headroom {

class PersistentTrainer : public LaunchedTrainer {
 public:
  Timing train(std::int64_t first_step, std::int64_t count) final;
  std::vector<float> losses(std::int64_t first_step, std::int64_t count) final;
  std::int64_t peak_device_bytes() final { return DeviceMemory::peak_bytes(); }

 protected:
  /// Device memory that is allocated from here on counts for peak_device_bytes().
  PersistentTrainer(std::vector<int> widths, LaunchPace pace);

  /// What a wait that ran out has left in status_, in words. The launch was given up then, and so is the trainer.
  virtual std::string describe_status(std::uint32_t status) const = 0;
  /// Throws InputError for parameters of another network.
  void require_widths_of(const Parameters& parameters) const;

  const std::vector<int> widths_;
  Stream stream_;
  KeptLosses losses_;
  DeviceBuffer<std::uint32_t> status_;  ///< one word: 0, or where a wait ran out

 private:
  void mark_begin() final { begin_.record(stream_); }
  void mark_end() final { end_.record(stream_); }
  double marked_seconds() final { return seconds_between(begin_, end_); }
  void trained(std::int64_t first_step, std::int64_t count) final { losses_.trained(first_step, count); }
  std::optional<std::string> given_up() const final;
  void check_status();

  Event begin_, end_;
  std::string
      failure_;  // of a wait that ran out; the parameters are then those of an earlier step, or of none
  LaunchPace pace_;
};

}  // namespace headroom
