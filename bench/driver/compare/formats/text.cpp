#include <fmt/core.h>

#include "driver/compare/formats/formats.h"
#include "driver/compare/formats/words.h"

namespace headroom {

std::string comparison_text(const Comparison& comparison, std::size_t width) {
  enum Column : std::size_t { kBase = 1, kHead, kChange, kInterval };
  const Table table{comparison_header(),
                    comparison_rows(comparison),
                    {kBase, kHead, kChange, kInterval},
                    0,
                    {kInterval, kBase, kHead}};
  std::string text =
      fmt::format("base: {}\nhead: {}\n\n{}", comparison.base, comparison.head, table_text(table, width));
  text += fmt::format("\n{}\n{}\n", how_measured(comparison), verdict_sentence(comparison));
  if (shows_what_is_visible(comparison)) text += visible_text(comparison) + "\n";
  return wrapped(text, width);
}

}  // namespace headroom
