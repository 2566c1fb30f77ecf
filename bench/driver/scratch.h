// A temporary folder of the run: data sets, parameters and reference points on their way to the workers.
//
// In /dev/shm where there is room, since a network of 140 million parameters needs 10 GB of reference points.
#pragma once

#include <cstdint>
#include <filesystem>

namespace headroom {

class Scratch {
 public:
  /// Throws std::runtime_error if neither /dev/shm nor the temporary folder can be written.
  explicit Scratch(std::int64_t bytes_needed);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

}  // namespace headroom
