// The stages of `headroom compare`; bench/main.cpp calls them in order.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "driver/compare/comparison.h"
#include "driver/plan/options.h"

namespace headroom {

/// Whether the comparison is measured now, as opposed to read from files.
bool measures(const CompareOptions& options);

/// The programs that a build must have to take part, a line each: what the front door builds of a git revision.
std::string targets_text(const CompareOptions& options);

/// Stores a baseline; returns a line that says where.
std::string stored_text(const CompareOptions& options);

/// Two files of one kind (results files or another tool's), one file's backends, or a baseline and a file, judged. Throws InputError, NotComparableError.
Comparison read_comparison(const CompareOptions& options);

/// Two builds, or one against itself as often as was asked. `report` gets each comparison when it is judged: after one
/// round, or after a second one of fresh processes if anything was inconclusive, which is then final.
/// Throws InputError for a folder that is no build or where nothing can be measured, NotComparableError.
void compare_builds(const CompareOptions& options, const std::function<void(const Comparison&)>& report);

/// Throws InputError if --output cannot be written, or is one of the files that are read. Leaves everything as it is.
void check_output(const CompareOptions& options);
/// Puts the comparisons in place of what --output held, which stays whole until they are there. Throws OutputError.
void write_output(const std::string& comparisons, const CompareOptions& options);

/// Of two exit codes the one that stands for both: a regression, then inconclusive.
int worse(int one, int other);

}  // namespace headroom
