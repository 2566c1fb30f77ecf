// NVBench's JSON, version 1 of its format: a state's samples are in a file that --jsonbin writes besides, fp32 seconds
// one after the other. Without that the file holds means, of which nobody can tell how far they spread.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "driver/compare/other_tools/other_tools.h"
#include "driver/system/json_file.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little);

constexpr std::int64_t kMostSamples = 100'000'000;

// The member `name` of a summary's `data`, where there is one: a list of name, type and value.
std::optional<JsonReader> value_of(const JsonReader& summary, const std::string& name) {
  const auto data = summary.find("data");
  if (!data) return std::nullopt;
  for (const JsonReader& entry : data->items()) {
    if (entry.at("name").string() == name) return entry.at("value");
  }
  return std::nullopt;
}

// Whole numbers are text in the format, so that none loses digits.
std::int64_t count_of(const JsonReader& value) {
  const std::string text = value.string();
  std::int64_t count = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 0 || count > kMostSamples)
    value.fail_expected("a number of samples");
  return count;
}

// The name that is stored leads from where the tool ran; the file has stayed beside the JSON, in the folder that the tool
// made there. Nothing else is opened.
fs::path samples_file(const JsonReader& name, const fs::path& json) {
  const fs::path stored = name.string();
  const fs::path folder = stored.parent_path().filename();
  if (stored.filename().extension() != ".bin" || !folder.string().ends_with("-bin"))
    name.fail_expected("the name of a file such as result.json-bin/0.bin");
  const fs::path file = json.parent_path() / folder / stored.filename();
  std::error_code error;
  if (!fs::is_regular_file(file, error))
    name.fail("there is no " + (folder / stored.filename()).string() +
              " beside the file; keep that folder with it");
  return file;
}

std::vector<double> read_samples(const JsonReader& summary, const fs::path& json) {
  const auto name = value_of(summary, "filename"), size = value_of(summary, "size");
  if (!name || !size) summary.fail_expected("a filename and a size");
  const std::int64_t count = count_of(*size);
  const fs::path file = samples_file(*name, json);
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(file, error);
  if (error || bytes != static_cast<std::uintmax_t>(count) * sizeof(float))
    size->fail("expected " + std::to_string(count) + " values of 4 bytes in " + file.filename().string() +
               ", found " + std::to_string(bytes) + " bytes");
  const std::string content = read_text(file);
  std::vector<double> samples;
  for (std::size_t place = 0; place + sizeof(float) <= content.size(); place += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, content.data() + place, sizeof(value));
    if (!(value > 0 && value < 1e12F))
      name->fail("sample " + std::to_string(samples.size()) + " is " + std::to_string(value) +
                 " s, expected a time over 0");
    samples.push_back(value);
  }
  return samples;
}

// Cold samples before others: each is a launch on a cleared cache, as the tool reports first.
std::optional<JsonReader> samples_summary(const JsonReader& state) {
  std::optional<JsonReader> found;
  const auto summaries = state.find("summaries");
  if (!summaries) return found;
  for (const JsonReader& summary : summaries->items()) {
    const std::string tag = summary.at("tag").string();
    if (!tag.starts_with("nv/json/bin:") || !tag.ends_with("/sample_times")) continue;
    if (!found || tag == "nv/json/bin:nv/cold/sample_times") found = summary;
  }
  return found;
}

OtherBenchmark read_state(const JsonReader& state, const std::string& benchmark, const fs::path& json) {
  OtherBenchmark read;
  read.name = benchmark + "/" + state.at("name").string();
  if (state.at("is_skipped").boolean()) {
    const auto reason = state.find("skip_reason");
    read.state = OtherBenchmark::State::kSkipped;
    read.note = reason && !reason->string().empty() ? reason->string() : "it gives no reason";
    return read;
  }
  const auto samples = samples_summary(state);
  if (!samples) {
    read.note = "only summaries, run it with --jsonbin FILE";
    return read;
  }
  read.seconds = read_samples(*samples, json);
  read.cpu_seconds.assign(read.seconds.size(), 0);
  read.iterations.assign(read.seconds.size(), 1);
  return read;
}

}  // namespace

void read_nvbench(const JsonReader& root, const fs::path& file, OtherFile& into) {
  const JsonReader version = root.at("meta").at("version");
  const JsonReader major = version.at("json").at("major");
  if (major.integer(0) != 1) major.fail_expected("1, the version of the format that is read");
  into.software["nvbench"] = version.at("nvbench").at("string").string();
  if (const auto devices = root.find("devices")) {
    for (const JsonReader& device : devices->items())
      into.machine.emplace_back("device " + std::to_string(device.at("id").integer(0)),
                                device.at("name").string());
  }
  const auto benchmarks = root.find("benchmarks");
  if (!benchmarks) return;
  for (const JsonReader& benchmark : benchmarks->items()) {
    const std::string name = benchmark.at("name").string();
    const auto states = benchmark.find("states");
    if (!states) continue;
    for (const JsonReader& state : states->items()) into.benchmarks.push_back(read_state(state, name, file));
  }
}

}  // namespace headroom
