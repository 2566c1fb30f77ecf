// Choices on disk, so that the next run makes the same one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/choice.h"
#include "core/workload.h"
#include "jit/kept_files.h"

namespace headroom::choice {

/// Of everything that decides which candidate is the fastest: the GPU's model, the sources, what is trained, and on how many samples.
/// Neither the workload's name nor its seed.
std::string key_of(const std::string& gpu, const std::string& sources, const Workload& workload,
                   Precision precision, std::int64_t samples);

class KeptChoices {
 public:
  /// Nothing that was kept before `since`, in seconds since 1970, is found. An empty folder: nothing is kept.
  explicit KeptChoices(std::filesystem::path folder, double since = 0)
      : files_(std::move(folder)), since_(since) {}

  /// nullopt where there is none, and where it is damaged. One with nothing taken is of a process that lost the device.
  std::optional<Choice> find(const std::string& key) const;
  /// Whether it was kept; `now` in seconds since 1970.
  bool keep(const std::string& key, const Choice& choice, double now) const;

 private:
  jit::KeptFiles files_;
  double since_;
};

}  // namespace headroom::choice
