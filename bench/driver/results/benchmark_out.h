// --benchmark_out: the records in a file, as Google Benchmark would report them.
#pragma once

#include <filesystem>

#include "driver/plan/options.h"
#include "driver/results/results.h"

namespace headroom {

/// Throws InputError if --benchmark_out cannot be written or is the `results_file`.
void check_benchmark_out(const GoogleBenchmarkOptions& options, const std::filesystem::path& results_file);
/// Puts device and version into the reports' context. Once per process, after the library has its flags.
void add_benchmark_context(const GoogleBenchmarkOptions& options, const Results& results);
/// Writes --benchmark_out anew: a file after each group, so that it is whole whatever ends the run; what is no file
/// (a pipe, a device) once, `at_the_end`. Throws OutputError if it cannot be written.
void write_benchmark_out(const GoogleBenchmarkOptions& options, const Results& results, bool at_the_end);

}  // namespace headroom
