#include <fmt/core.h>

#include "driver/compare/formats/words.h"
#include "driver/history/formats/formats.h"
#include "driver/system/table.h"
#include "driver/system/units.h"

namespace headroom {
namespace {

std::string device_table(const DeviceHistory& history, std::size_t width) {
  enum Column : std::size_t { kMeasured = 4, kStep, kInterval, kChange, kChangeInterval };
  Table table{{"workload", "precision", "backend", "commit", "measured", "step", "95 % interval", "change",
               "interval of the change", "result"},
              {},
              {kStep, kInterval, kChange, kChangeInterval},
              3,
              {kInterval, kChangeInterval, kMeasured}};
  for (const CellHistory& cell : history.cells) {
    for (const HistoryPoint& point : cell.points) {
      const HistorySource& source = history.sources[point.source];
      std::string step, interval, change, bounds;
      if (point.step_seconds) {
        step = step_text(point.step_seconds->median);
        interval =
            fmt::format("{} .. {}", step_text(point.step_seconds->low), step_text(point.step_seconds->high));
      }
      if (point.finding) {
        change = percent(point.finding->ratio);
        bounds = fmt::format("{} .. {}", percent(point.finding->low), percent(point.finding->high));
      }
      table.rows.push_back(
          {cell.workload, std::string(to_string(cell.precision)), cell.backend, source.label(),
           source.date.substr(0, 10), step, interval, change, bounds,
           shown_verdict(point.change) + (point.message.empty() ? "" : ": " + point.message)});
    }
  }
  return table_text(table, width);
}

std::string counted(std::size_t count, const char* one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

}  // namespace

std::string history_text(const History& history, std::size_t width) {
  std::string text;
  for (const DeviceHistory& device : history.devices) {
    text += fmt::format("{}: {} at {}, {}\n{}\n", device.device, counted(device.cells.size(), "cell"),
                        counted(device.sources.size(), "commit"),
                        device.by_commit ? "in the order of the commits' dates" : "in the order of measuring",
                        device.cells.empty() ? "every record was skipped\n" : device_table(device, width));
  }
  std::string changes;
  for (const char* word : {"regression", "improvement", "equivalent", "inconclusive", "chose otherwise",
                           "not compared", "failed"}) {
    if (const std::int64_t count = history.count(word); count > 0)
      changes += fmt::format("{}{} {}", changes.empty() ? "" : ", ", count, word);
  }
  if (!changes.empty()) text += "Changes: " + changes + ".\n";
  text += fmt::format(
      "Each point is judged against the one before it by the gate's rule. The tolerance is {:.3g} %, {:.3g} "
      "% of it for the drift "
      "between runs, as files are not measured together.\n",
      100 * history.rule.tolerance, 100 * history.widened_by);
  return wrapped(text + file_notes(history), width);
}

}  // namespace headroom
