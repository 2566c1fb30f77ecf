// Going on with the file of a run that was interrupted, or whose failures are to be tried again.
#pragma once

#include <optional>
#include <string>

#include "driver/plan/plan.h"
#include "driver/results/results.h"
#include "driver/system/whole_file.h"

namespace headroom {

/// The options of a run that goes on with its file, or those given; with --resume `earlier` is what the file
/// holds, and `output` holds the file.
RunOptions resolve_options(const RunOptions& asked, ReservedFile& output, std::optional<Results>& earlier);

/// Throws InputError if an `earlier` run, which is to go on, was of another suite, other sources or other workloads: what
/// can be known before any worker is started.
void refuse_other_plan(const RunOptions& options, const std::optional<Results>& earlier, const Plan& plan,
                       const Installation& installation);

/// Takes over the earlier run's records, as far as they are complete groups of the plan, and what belongs to them. Throws
/// InputError if it had another device or other software. `file`: as --resume names it.
void go_on_with(const Results& earlier, const std::string& file, const Plan& plan, Results& results);

/// Whether the file lacks a record of the group, or holds a failed one that --retry-failed asks for.
bool is_due(const RunOptions& options, const Results& results, const PlannedWorkload& planned,
            const Group& group);

}  // namespace headroom
