#include "driver/compare/other_tools/other_tools.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "driver/system/json_file.h"

namespace headroom {
namespace {

// NaN and Infinity outside of strings as null.
std::string without_nan(const std::string& text) {
  std::string clean;
  clean.reserve(text.size());
  bool inside = false;
  for (std::size_t place = 0; place < text.size(); ++place) {
    const char c = text[place];
    if (inside && c == '\\') {
      clean += c;
      if (++place < text.size()) clean += text[place];
      continue;
    }
    if (c == '"') inside = !inside;
    std::size_t skipped = 0;
    if (!inside && (c == '-' || c == 'N' || c == 'I')) {
      const std::size_t sign = c == '-' ? 1 : 0;
      for (const std::string word : {"NaN", "Infinity"}) {
        if (text.compare(place + sign, word.size(), word) == 0) skipped = sign + word.size();
      }
    }
    if (skipped > 0) {
      clean += "null";
      place += skipped - 1;
    } else {
      clean += c;
    }
  }
  return clean;
}

}  // namespace

const char* to_string(Tool tool) { return tool == Tool::kNvbench ? "NVBench" : "Google Benchmark"; }

nlohmann::json read_measured_json(const std::filesystem::path& file) {
  const std::string text = read_text(file);
  const bool maybe_google = text.find("\"context\"") < text.find("\"benchmarks\"");
  return json_of(maybe_google ? without_nan(text) : text, file, "a results file");
}

std::optional<Tool> tool_of(const nlohmann::json& root) {
  if (!root.is_object() || root.contains("schema_version") || !root.contains("benchmarks"))
    return std::nullopt;
  if (root.contains("context")) return Tool::kGoogleBenchmark;
  if (root.contains("devices") || root.contains("meta")) return Tool::kNvbench;
  return std::nullopt;
}

OtherFile read_other_tool(Tool tool, const nlohmann::json& root, const std::filesystem::path& file) {
  OtherFile read;
  read.name = file.filename().string();
  read.tool = tool;
  try {
    if (tool == Tool::kNvbench) {
      read_nvbench(JsonReader(root), file, read);
    } else {
      read_google_benchmark(JsonReader(root), read);
    }
  } catch (const JsonError& error) {
    throw InputError(fmt::format("{}: {}", file.string(), error.what()));
  }
  std::set<std::string> names;
  for (const OtherBenchmark& benchmark : read.benchmarks) {
    if (!names.insert(benchmark.name).second)
      throw InputError(fmt::format("{}: benchmark '{}' is there twice", file.string(), benchmark.name));
  }
  return read;
}

}  // namespace headroom
