#include "driver/history/formats/formats.h"

#include <fmt/core.h>

namespace headroom {

std::string formatted(const History& history, SummaryFormat format, std::size_t width) {
  switch (format) {
    case SummaryFormat::kJson:
      return history_json(history);
    case SummaryFormat::kCsv:
      return history_csv(history);
    case SummaryFormat::kText:
      break;
  }
  return history_text(history, width);
}

std::string file_notes(const History& history) {
  std::string text;
  for (const FileNote& one : history.left_out) text += fmt::format("{}: left out: {}\n", one.file, one.text);
  for (const FileNote& one : history.notes) text += fmt::format("{}: {}\n", one.file, one.text);
  return text;
}

}  // namespace headroom
