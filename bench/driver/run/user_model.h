// `run --model FILE:NAME`: which network a user's file has.
//
// The Python worker's program executes the file, in a process of its own that is given a time limit and then ends. What
// remains is a workload like any other: it is measured, written down and gone on with (--resume) without the file.
#pragma once

#include <optional>

#include "driver/plan/backends.h"
#include "driver/plan/options.h"
#include "driver/results/results.h"

namespace headroom {

/// Puts the workload that was read in the place of `options.model`, among the settings too. Its activation and widths are
/// the file's, its batch size is the option's. nullopt if no model was asked for. Throws InputError that says why the file has no network
/// that is trained here, or that it took longer than the time limit.
std::optional<ModelSource> take_user_model(RunOptions& options, const Installation& installation);

}  // namespace headroom
