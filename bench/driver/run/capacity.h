// Whether this machine has the memory for what the driver itself holds of a workload: asked before any of it is made.
//
// Linux gives memory away that it does not have and ends the process later, so nothing can be learned from trying.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "driver/plan/plan.h"

namespace headroom {

/// Bytes for one workload at once.
struct Need {
  std::int64_t memory =
      0;  ///< data set, parameters and, where the CPU follows the oracle, its doubles, slots included
  std::int64_t scratch = 0;  ///< temporary files: the same data for the workers, and the oracle's points
};

/// `seeds`: further ones that loss curves are trained with. Data of files count nothing: they were read to check them.
Need need_of(const Workload& workload, std::int64_t least_train_bytes, bool gpu_oracle, std::int64_t seeds);

struct Room {
  std::int64_t memory = 0;         ///< that can be taken without anything being ended for it
  std::string memory_source;       ///< what says so: MemAvailable, or a control group's limit
  std::int64_t shared_memory = 0;  ///< free in /dev/shm, which is memory too
  std::int64_t temporary = 0;      ///< free in the temporary folder
};

/// `root`: where /proc and /sys are. What cannot be read is taken as boundless.
Room room_here(const std::filesystem::path& root = "/");

/// Throws InputError that says what the workload needs and what is there.
void refuse_too_large(const Workload& workload, const Need& need, const Room& room);

}  // namespace headroom
