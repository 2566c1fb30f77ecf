#include "driver/results/benchmark_out.h"

#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "driver/results/formats/formats.h"
#include "driver/system/standard_output.h"
#include "driver/system/version.h"
#include "driver/system/whole_file.h"

namespace headroom {

namespace fs = std::filesystem;

void check_benchmark_out(const GoogleBenchmarkOptions& options, const fs::path& results_file) {
  if (options.out.empty()) return;
  const fs::path out = options.out;
  std::error_code ignored;
  if (fs::is_directory(out, ignored))
    throw InputError(fmt::format("--benchmark_out={}: is a folder; expected a file name", options.out));
  if (fs::weakly_canonical(out, ignored) == fs::weakly_canonical(results_file, ignored)) {
    throw InputError(
        fmt::format("--benchmark_out={}: is the results file too; name another file", options.out));
  }
  if (is_stream(out)) return;
  try {
    check_writable(out);
  } catch (const OutputError& error) {
    throw OutputError(fmt::format("--benchmark_out={}", error.what()));
  }
}

void add_benchmark_context(const GoogleBenchmarkOptions& options, const Results& results) {
  const auto add = [&](const std::string& key, const std::string& value) {
    const bool given = std::any_of(
        options.passed_on.begin(), options.passed_on.end(),
        [&](const std::string& word) { return word.starts_with("--benchmark_context=" + key + "="); });
    if (!given && !value.empty()) benchmark::AddCustomContext(key, value);
  };
  add("headroom_version", kVersion);
  add("source_digest", results.run.source_digest.value_or(""));
  add("gpu", results.device ? results.device->name : "none");
  if (results.device) add("gpu_driver", results.device->driver);
}

void write_benchmark_out(const GoogleBenchmarkOptions& options, const Results& results, bool at_the_end) {
  if (options.out.empty()) return;
  const bool stream = is_stream(options.out);
  if (stream && !at_the_end) return;
  // The library, too, writes a console report's context into the file; a table of values has no place for it.
  const std::string text =
      benchmark_report(results, options.out_format, /*with_context=*/options.out_format == "console");
  if (!stream) {
    write_whole(text, options.out);
    return;
  }
  if (options.out == "/dev/stdout") {  // opened anew it would have a place of its own in a file
    print(text);
    return;
  }
  std::ofstream file(options.out, std::ios::app);
  file << text << std::flush;
  if (!file)
    throw OutputError(
        fmt::format("--benchmark_out={}: cannot be written: {}", options.out, std::strerror(errno)));
}

}  // namespace headroom
