// What a run prints on standard output when it is over: a file here for each format.
#pragma once

#include <filesystem>
#include <string>

#include "driver/plan/options.h"
#include "driver/results/results.h"
#include "driver/system/terminal.h"

namespace headroom {

/// The results in the format that was asked for: our table, or with --format and --benchmark_format what other programs read.
/// `file`: where they are. Only what is for people is made to fit a terminal of `width` columns.
std::string printed(const Results& results, const RunOptions& options, const std::filesystem::path& file,
                    std::size_t width);

/// What ran, a line a record; then what was skipped, a line for each reason. `width`: of the terminal, see table.h.
std::string summary_table(const Results& results, std::size_t width = kNoWidth);
/// Where the time goes, a line for each (workload, precision) of which two terms or more are known; else empty.
std::string ladder_table(const Results& results, std::size_t width = kNoWidth);
std::string summary_sentence(const Results& results);
/// The same for programs.
std::string summary_json(const Results& results, const std::filesystem::path& file);

/// A row for each block, for spreadsheets and data frames, and one for each record without blocks. `file`: what the first
/// column says.
std::string blocks_csv_header();
std::string blocks_csv(const Results& results, const std::string& file);

/// The records as Google Benchmark would report them. Made of the records and not of what the library reported while it
/// timed: a record can fail after its blocks, the library's CPU time is that of this process, which only waits, and a run
/// that goes on has records of an earlier one.
/// `format`: json, console or csv; empty: json. `with_context`: also where the library writes the context to standard
/// error, into the text. Every block is a repetition with the record's own times and as counters operations_per_second,
/// fraction_of_floor and joules_per_step; failed and skipped records have no times and say why.
std::string benchmark_report(const Results& results, const std::string& format, bool with_context);

}  // namespace headroom
