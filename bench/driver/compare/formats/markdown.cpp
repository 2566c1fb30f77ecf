#include <fmt/core.h>

#include "driver/compare/formats/formats.h"
#include "driver/compare/formats/words.h"

namespace headroom {

std::string comparison_markdown(const Comparison& comparison) {
  const auto escaped = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
      text.insert(at, 1, '\\');
    return text;
  };
  const auto line = [&](const Table::Row& row) {
    std::string text = "|";
    for (const std::string& field : row) text += fmt::format(" {} |", escaped(field));
    return text + "\n";
  };
  std::string text = fmt::format("### Step time: {}\n\nbase `{}`, head `{}`{}\n\n",
                                 verdict_sentence(comparison), comparison.base, comparison.head,
                                 comparison.device ? ", on " + comparison.device->name : "");
  text += line(comparison_header()) + "| --- | ---: | ---: | ---: | ---: | --- |\n";
  for (const Table::Row& row : comparison_rows(comparison)) text += line(row);
  text += fmt::format("\n{}\n", how_measured(comparison));
  if (shows_what_is_visible(comparison)) text += fmt::format("\n{}\n", visible_text(comparison));
  return text;
}

}  // namespace headroom
