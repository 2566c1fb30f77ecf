#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "driver/compare/formats/formats.h"
#include "driver/compare/formats/json_text.h"
#include "driver/compare/formats/words.h"

namespace headroom {

std::string comparison_github_action(const Comparison& comparison) {
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const ComparedCell& cell : comparison.cells) {
    if (!judged(cell)) continue;
    const CellFinding& found = cell.finding;
    entries.push_back(
        {{"name", cell.name()},
         {"unit", "us/step"},
         {"value", 1e6 * found.base_seconds * found.ratio},
         {"range", fmt::format("{} .. {} against base", percent(found.low), percent(found.high))},
         {"extra",
          fmt::format("{}: {} against base {}", verdict_word(cell), percent(found.ratio), comparison.base)}});
  }
  return indented(entries);
}

}  // namespace headroom
