#include <fmt/core.h>

#include <cmath>

#include "driver/history/formats/formats.h"
#include "driver/system/csv_text.h"

namespace headroom {
namespace {

struct PointRow {
  const DeviceHistory& device;
  const CellHistory& cell;
  const HistoryPoint& point;
  const HistorySource& source() const { return device.sources[point.source]; }
};

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : ""; }

template <double StepSeconds::* Bound>
std::string step_seconds(const PointRow& row) {
  return row.point.step_seconds ? number((*row.point.step_seconds).*Bound) : "";
}

template <double CellFinding::* Bound>
std::string finding(const PointRow& row) {
  return row.point.finding ? number((*row.point.finding).*Bound) : "";
}

std::string files(const PointRow& row) {
  std::string text;
  for (const std::string& file : row.source().files) text += (text.empty() ? "" : "; ") + file;
  return text;
}

struct Column {
  const char* name;
  std::string (*value)(const PointRow& row);
};

constexpr Column kColumns[] = {
    {"device", [](const PointRow& row) { return row.device.device; }},
    {"workload", [](const PointRow& row) { return row.cell.workload; }},
    {"trained", [](const PointRow& row) { return row.cell.trained; }},
    {"backend", [](const PointRow& row) { return row.cell.backend; }},
    {"precision", [](const PointRow& row) { return std::string(to_string(row.cell.precision)); }},
    {"place", [](const PointRow& row) { return fmt::format("{}", row.point.source); }},
    {"commit", [](const PointRow& row) { return row.source().commit; }},
    {"dirty",
     [](const PointRow& row) { return row.source().dirty ? fmt::format("{}", *row.source().dirty) : ""; }},
    {"date", [](const PointRow& row) { return row.source().date; }},
    {"files", files},
    {"blocks", [](const PointRow& row) { return fmt::format("{}", row.point.blocks); }},
    {"step_seconds", step_seconds<&StepSeconds::median>},
    {"step_seconds_low", step_seconds<&StepSeconds::low>},
    {"step_seconds_high", step_seconds<&StepSeconds::high>},
    {"change", [](const PointRow& row) { return row.point.change; }},
    {"compared_with",
     [](const PointRow& row) {
       return row.point.compared_with ? row.device.sources[*row.point.compared_with].commit : "";
     }},
    {"ratio", finding<&CellFinding::ratio>},
    {"ratio_low", finding<&CellFinding::low>},
    {"ratio_high", finding<&CellFinding::high>},
    {"message", [](const PointRow& row) { return row.point.message; }},
};

}  // namespace

std::string history_csv(const History& history) {
  std::vector<std::string> fields;
  for (const Column& column : kColumns) fields.emplace_back(column.name);
  std::string text = csv_line(fields);
  for (const DeviceHistory& device : history.devices) {
    for (const CellHistory& cell : device.cells) {
      for (const HistoryPoint& point : cell.points) {
        fields.clear();
        for (const Column& column : kColumns) fields.push_back(column.value({device, cell, point}));
        text += csv_line(fields);
      }
    }
  }
  return text;
}

}  // namespace headroom
