// What a run is going to take, in time, memory and temporary files: guessed before anything is measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "driver/results/results.h"
#include "driver/run/group_run.h"

namespace headroom {

/// Bytes of synthetic training data that the device needs for its caches to be no help.
std::int64_t least_train_bytes(const std::optional<DeviceInfo>& device);

/// Bytes of temporary files that the largest workload needs.
std::int64_t temporary_bytes(const Plan& plan);

/// Throws InputError if a workload of which anything will run does not fit into this machine's memory.
void refuse_too_large(const RunContext& context, const Results& results);

/// Whether this machine can run the backend in the group's precision on so many devices; else its record will be skipped.
bool runs_here(const RunContext& context, const Group& group, const std::string& backend, int devices);

/// Guess at how long a group takes, for the estimate before the start and the time left.
double estimated_seconds(const RunContext& context, const PlannedWorkload& planned, const Group& group);

/// Guess at how long what is due takes, and how many records are to be made.
struct Outlook {
  double seconds = 0;
  std::int64_t running = 0, skipped = 0;
};
Outlook look_ahead(const RunContext& context, const Results& results);
/// Throws InputError if that is more than a day and --yes was not given.
void refuse_too_long(const RunOptions& options, const Outlook& outlook);

}  // namespace headroom
