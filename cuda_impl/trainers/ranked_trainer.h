// Several trainers that train one network together, each on a GPU of its own: its rank. Their kernels tell each other what they
// need, so the launches are all queued before the host waits for any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/launch_pace.h"
#include "trainers/launched_trainer.h"

namespace headroom {

class RankedTrainer final : public Trainer {
 public:
  struct Rank {
    int device;
    std::unique_ptr<LaunchedTrainer> trainer;
  };
  RankedTrainer(std::vector<Rank> ranks, LaunchPace pace);

  /// device_seconds is the slowest rank's. A wait that ran out is std::runtime_error, or DeviceStuckError where it ended the launch with
  /// an error; the message names the ranks that waited.
  Timing train(std::int64_t first_step, std::int64_t count) override;
  /// The mean over ranks: each has as many rows of a batch.
  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override;
  /// These throw std::runtime_error if a rank has other bits than the first.
  Parameters parameters() override;
  std::vector<Parameters> slots() override;
  void set_parameters(const Parameters& parameters) override;
  void set_slots(const std::vector<Parameters>& slots) override;
  /// A rank's part of what the process holds.
  std::int64_t peak_device_bytes() override;
  std::optional<SetupCache> setup_cache() override;
  std::string note() override;

 private:
  /// visit(rank's trainer), with its device as this thread's.
  template <class Visit>
  void for_ranks(const Visit& visit);
  double seconds_so_far();
  /// Once one of them has failed: the others' waits for it have a bound.
  void wait_for_all();
  /// What the ranks that gave up say; empty if none has.
  std::string given_up();

  std::vector<Rank> ranks_;
  LaunchPace pace_;
  std::string failure_;  // of waits that ran out
};

}  // namespace headroom
