#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "driver/compare/formats/formats.h"
#include "driver/compare/formats/json_text.h"
#include "driver/compare/formats/words.h"

namespace headroom {

std::string comparison_bencher(const Comparison& comparison) {
  nlohmann::ordered_json metrics = nlohmann::ordered_json::object();
  for (const ComparedCell& cell : comparison.cells) {
    if (!judged(cell)) continue;
    const CellFinding& found = cell.finding;
    const auto scaled = [&](double factor) {
      nlohmann::ordered_json metric = {{"value", factor * found.ratio}};
      if (std::isfinite(found.low)) metric["lower_value"] = factor * found.low;
      if (std::isfinite(found.high)) metric["upper_value"] = factor * found.high;
      return metric;
    };
    // The format's latency is in nanoseconds. Head's is base's median times the ratio that the pairs gave.
    metrics[cell.name()] = {{"latency", scaled(1e9 * found.base_seconds)}, {"head-over-base", scaled(1)}};
  }
  return indented(metrics);
}

}  // namespace headroom
