#include <nlohmann/json.hpp>

#include "driver/compare/formats/json_text.h"
#include "driver/history/formats/formats.h"

namespace headroom {
namespace {

using json = nlohmann::ordered_json;

json or_null(const auto& value) { return value ? json(*value) : json(nullptr); }

json point_json(const HistoryPoint& point) {
  json step = nullptr, finding = nullptr;
  if (const auto& seconds = point.step_seconds)
    step = {{"median", seconds->median}, {"low", seconds->low}, {"high", seconds->high}};
  if (const auto& found = point.finding)
    finding = {{"ratio", found->ratio},
               {"low", finite_or_null(found->low)},
               {"high", finite_or_null(found->high)},
               {"level", found->level}};
  return {{"source", point.source},
          {"step_seconds", step},
          {"blocks", point.blocks},
          {"change", point.change},
          {"compared_with", or_null(point.compared_with)},
          {"finding", finding},
          {"message", point.message}};
}

json notes_json(const std::vector<FileNote>& notes) {
  json list = json::array();
  for (const FileNote& one : notes) list.push_back({{"file", one.file}, {"text", one.text}});
  return list;
}

}  // namespace

std::string history_json(const History& history) {
  json devices = json::array();
  for (const DeviceHistory& device : history.devices) {
    json sources = json::array(), cells = json::array();
    for (const HistorySource& source : device.sources)
      sources.push_back({{"label", source.label()},
                         {"commit", source.commit},
                         {"dirty", or_null(source.dirty)},
                         {"date", source.date},
                         {"files", source.files}});
    for (const CellHistory& cell : device.cells) {
      json points = json::array();
      for (const HistoryPoint& point : cell.points) points.push_back(point_json(point));
      cells.push_back({{"workload", cell.workload},
                       {"trained", cell.trained},
                       {"backend", cell.backend},
                       {"precision", to_string(cell.precision)},
                       {"points", points}});
    }
    devices.push_back({{"device", device.device},
                       {"order", device.by_commit ? "commit" : "measured"},
                       {"sources", sources},
                       {"cells", cells}});
  }
  return indented({{"schema_version", 1},
                   {"rule",
                    {{"tolerance", history.rule.tolerance},
                     {"tolerance_seconds", history.rule.tolerance_seconds},
                     {"level", history.rule.level},
                     {"widened_by", history.widened_by}}},
                   {"devices", devices},
                   {"left_out", notes_json(history.left_out)},
                   {"notes", notes_json(history.notes)}});
}

}  // namespace headroom
