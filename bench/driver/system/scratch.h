// A temporary folder of the run: data sets, parameters and reference points on their way to the workers.
//
// In /dev/shm where there is room, since a network of 140 million parameters needs 10 GB of reference points.
// It is called headroom-PID-XXXXXX and holds a file owner.lock, which its owner keeps under flock until it ends, however it
// ends. A folder of the same user whose owner.lock can be locked is a leftover of a program that was killed: whoever makes
// a Scratch removes those first, and a shell can ask `flock -n FOLDER/owner.lock true`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "driver/system/made_folder.h"
#include "worker/descriptor.h"

namespace headroom {

class Scratch {
 public:
  /// Throws std::runtime_error if neither /dev/shm nor the temporary folder can be written.
  explicit Scratch(std::int64_t bytes_needed);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  /// False where none can be made.
  bool make(const std::filesystem::path& parent);

  MadeFolder folder_;
  Descriptor lock_;
};

/// Where scratch folders can be: /dev/shm and the temporary folder.
std::vector<std::filesystem::path> scratch_parents();
/// Removes the scratch folders in `parent` that programs of this user have left.
void remove_leftovers(const std::filesystem::path& parent);

}  // namespace headroom
