// Rows for a spreadsheet or a data frame. docs/usage.md explains the columns; a test compares the two lists.
#include <fmt/core.h>

#include "driver/results/formats/formats.h"
#include "driver/system/csv_text.h"

namespace headroom {
namespace {

/// A block of a record, or a record without blocks.
struct BlockRow {
  const std::string& file;
  const Results& results;
  const Record& record;
  const Block* block;  // null: the record has none
};

template <typename T>
std::string known(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "";
}

template <double Block::* Seconds>
std::string step_seconds(const BlockRow& row) {
  return row.block == nullptr
             ? ""
             : fmt::format("{}", row.block->*Seconds / static_cast<double>(row.block->steps));
}

template <std::optional<double> GpuState::* Quantity>
std::string gpu_state(const BlockRow& row) {
  return row.block == nullptr || !row.block->gpu ? "" : known((*row.block->gpu).*Quantity);
}

std::string throttle_reasons(const BlockRow& row) {
  std::string text;
  if (row.block == nullptr || !row.block->gpu || !row.block->gpu->throttle_reasons) return text;
  for (const std::string& reason : *row.block->gpu->throttle_reasons)
    text += (text.empty() ? "" : "; ") + reason;
  return text;
}

std::string what_is_trained(const BlockRow& row) {
  const WorkloadEntry* entry = row.results.find_workload(row.record.workload);
  return entry == nullptr ? "" : default_name(entry->workload);
}

std::string taken(const BlockRow& row) {
  const Choice* choice =
      row.results.find_choice(row.record.workload, row.record.backend, row.record.precision);
  return choice == nullptr ? "" : choice->taken;
}

struct Column {
  const char* name;
  std::string (*value)(const BlockRow& row);
};

// Numbers are written so that reading them gives the same number again. What is not known is empty.
constexpr Column kColumns[] = {
    {"file", [](const BlockRow& row) { return row.file; }},
    {"run", [](const BlockRow& row) { return row.results.run.id; }},
    {"commit", [](const BlockRow& row) { return row.results.run.git_sha.value_or(""); }},
    {"dirty", [](const BlockRow& row) { return known(row.results.run.git_dirty); }},
    {"date", [](const BlockRow& row) { return row.results.run.started_utc; }},
    {"device", [](const BlockRow& row) { return device_name(row.results); }},
    {"driver", [](const BlockRow& row) { return row.results.device ? row.results.device->driver : ""; }},
    {"workload", [](const BlockRow& row) { return row.record.workload; }},
    {"trained", what_is_trained},
    {"backend", [](const BlockRow& row) { return row.record.backend; }},
    {"family", [](const BlockRow& row) { return std::string(to_string(row.record.family)); }},
    {"taken", taken},
    {"precision", [](const BlockRow& row) { return std::string(to_string(row.record.precision)); }},
    {"contract", [](const BlockRow& row) { return std::string(to_string(row.record.contract)); }},
    {"outcome", [](const BlockRow& row) { return std::string(to_string(row.record.outcome)); }},
    {"verdict", [](const BlockRow& row) { return std::string(to_string(row.record.verification.verdict)); }},
    {"message", [](const BlockRow& row) { return row.record.message; }},
    {"block",
     [](const BlockRow& row) {
       return row.block == nullptr ? "" : fmt::format("{}", row.block - row.record.blocks.data());
     }},
    {"order",
     [](const BlockRow& row) { return row.block == nullptr ? "" : fmt::format("{}", row.block->order); }},
    {"steps",
     [](const BlockRow& row) { return row.block == nullptr ? "" : fmt::format("{}", row.block->steps); }},
    {"device_step_seconds", step_seconds<&Block::device_seconds>},
    {"wall_step_seconds", step_seconds<&Block::wall_seconds>},
    {"cpu_step_seconds", step_seconds<&Block::cpu_seconds>},
    {"sm_clock_megahertz", gpu_state<&GpuState::sm_clock_megahertz>},
    {"memory_clock_megahertz", gpu_state<&GpuState::memory_clock_megahertz>},
    {"power_watts", gpu_state<&GpuState::power_watts>},
    {"temperature_celsius", gpu_state<&GpuState::temperature_celsius>},
    {"throttle_reasons", throttle_reasons},
};

std::string line_of(const BlockRow& row) {
  std::vector<std::string> fields;
  for (const Column& column : kColumns) fields.push_back(column.value(row));
  return csv_line(fields);
}

}  // namespace

std::string blocks_csv_header() {
  std::vector<std::string> names;
  for (const Column& column : kColumns) names.emplace_back(column.name);
  return csv_line(names);
}

std::string blocks_csv(const Results& results, const std::string& file) {
  std::string text;
  for (const Record& record : results.records) {
    for (const Block& block : record.blocks) text += line_of({file, results, record, &block});
    if (record.blocks.empty()) text += line_of({file, results, record, nullptr});
  }
  return text;
}

}  // namespace headroom
