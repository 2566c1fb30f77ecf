// The records as Google Benchmark would report them, for --benchmark_out and --benchmark_format.
//
// Made of the records and not of what the library reported while it timed: a record can fail after its blocks, the
// library's CPU time is that of this process, which only waits, and a run that goes on has records of an earlier one.
#pragma once

#include <string>

#include "driver/plan/options.h"
#include "driver/results/results.h"

namespace headroom {

/// `format`: json, console or csv; empty: json. `with_context`: also where the library writes the context to standard
/// error, into the text. Every block is a repetition with the record's own times and as counters operations_per_second,
/// fraction_of_floor and joules_per_step; failed and skipped records have no times and say why.
std::string benchmark_report(const Results& results, const std::string& format, bool with_context);

/// Throws InputError if --benchmark_out cannot be written or is the `results_file`.
void check_benchmark_out(const GoogleBenchmarkOptions& options, const std::filesystem::path& results_file);
/// Puts device and version into the reports' context. Once per process, after the library has its flags.
void add_benchmark_context(const GoogleBenchmarkOptions& options, const Results& results);
/// Writes --benchmark_out anew: a file after each group, so that it is whole whatever ends the run; what is no file
/// (a pipe, a device) once, `at_the_end`. Throws OutputError if it cannot be written.
void write_benchmark_out(const GoogleBenchmarkOptions& options, const Results& results, bool at_the_end);

}  // namespace headroom
