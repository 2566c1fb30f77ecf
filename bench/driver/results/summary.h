// What a run prints on standard output when it is over: a table and one sentence, or the same as JSON.
#pragma once

#include <filesystem>
#include <string>

#include "driver/results/results.h"
#include "driver/system/terminal.h"

namespace headroom {

/// What ran, a line a record; then what was skipped, a line for each reason. `width`: of the terminal, see table.h.
std::string summary_table(const Results& results, std::size_t width = kNoWidth);
/// Where the time goes, a line for each (workload, precision) of which two terms or more are known; else empty.
std::string ladder_table(const Results& results, std::size_t width = kNoWidth);
std::string summary_sentence(const Results& results);
std::string summary_json(const Results& results, const std::filesystem::path& file);

}  // namespace headroom
