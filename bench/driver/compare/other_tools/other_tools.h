// What other benchmark tools have measured, read for `headroom compare`: a file here for each format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/compare/comparison.h"
#include "json/reader.h"

namespace headroom {

enum class Tool { kGoogleBenchmark, kNvbench };
const char* to_string(Tool tool);  ///< "Google Benchmark", "NVBench"

/// A benchmark of such a tool. kMeasured may have no samples; `note` then says why, else why it failed or was skipped.
struct OtherBenchmark {
  enum class State { kMeasured, kFailed, kSkipped };
  std::string name;
  State state = State::kMeasured;
  std::string note;
  std::vector<double> seconds;      ///< of an iteration, for each repetition or sample in order; positive
  std::vector<double> cpu_seconds;  ///< as many; zeros where the tool does not say
  std::vector<std::int64_t> iterations;  ///< in each
};

struct OtherFile {
  std::string name;  ///< how reports call it
  Tool tool = Tool::kGoogleBenchmark;
  std::vector<std::pair<std::string, std::string>> machine;  ///< what must be alike: field and value
  std::map<std::string, std::string> software;
  std::vector<OtherBenchmark> benchmarks;  ///< no two of one name
};

/// The JSON of a results file or of another tool's file. Google Benchmark writes NaN for a spread that it cannot compute,
/// which is no JSON; in its files that becomes null. Throws InputError as read_json() does.
nlohmann::json read_measured_json(const std::filesystem::path& file);

/// Whose file it is; nullopt for a results file, or what may have been one.
std::optional<Tool> tool_of(const nlohmann::json& root);

/// `root` is of `tool`. Throws InputError with the file and the place of the first fault.
OtherFile read_other_tool(Tool tool, const nlohmann::json& root, const std::filesystem::path& file);

// The formats; they throw JsonError.
void read_google_benchmark(const JsonReader& root, OtherFile& into);
/// Samples are read from the files that `--jsonbin` puts into a folder beside `file`.
void read_nvbench(const JsonReader& root, const std::filesystem::path& file, OtherFile& into);

/// The benchmarks of both files, each with the pairs of their samples in order; not judged yet. The tolerance is widened
/// by kRunDrift, and has no absolute part: a benchmark may take nanoseconds.
/// Throws NotComparableError for different machines, InputError for files without common benchmarks.
Comparison compare_other_tools(const OtherFile& base, const OtherFile& head, const GateRule& rule);

}  // namespace headroom
