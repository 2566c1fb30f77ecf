// `headroom profile`: one backend trains in one process, for a profiler that watches this program and its children.
#pragma once

#include <string>
#include <vector>

#include "driver/plan/options.h"

namespace headroom {

/// Sets the backend up, checks it against the oracle, and trains a warm-up and a block of steps, each in a range of its own
/// where the worker has ranges. Returns what the block took, and the command lines of the profilers.
/// Throws InputError where the backend cannot run here, std::runtime_error where it fails or its check does.
std::string profile_text(const ProfileOptions& options);

/// The command lines of the two profilers around `command`, words of a command line; `ranges`: whether the worker has
/// ranges.
std::string profiler_lines(const std::vector<std::string>& command, bool ranges);

}  // namespace headroom
