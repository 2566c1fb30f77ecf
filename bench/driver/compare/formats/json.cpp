#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "driver/compare/formats/formats.h"
#include "driver/compare/formats/json_text.h"
#include "driver/compare/formats/words.h"

namespace headroom {
namespace {

using json = nlohmann::ordered_json;

json cell_json(const ComparedCell& cell, const Comparison& comparison) {
  json pairs = json::array();
  for (const BlockPair& pair : cell.pairs) {
    pairs.push_back({{"base_step_seconds", pair.seconds.base_seconds},
                     {"head_step_seconds", pair.seconds.head_seconds},
                     {"base_cpu_step_seconds", pair.base_cpu_seconds},
                     {"head_cpu_step_seconds", pair.head_cpu_seconds},
                     {"base_steps", pair.base_steps},
                     {"head_steps", pair.head_steps},
                     {"first", pair.head_first ? "head" : "base"},
                     {"processes", pair.seconds.processes},
                     {"round", pair.round}});
  }
  json finding = nullptr;
  if (judged(cell)) {
    const CellFinding& found = cell.finding;
    const auto visible = visible_slowdown(cell, comparison);
    finding = {{"ratio", found.ratio},
               {"low", finite_or_null(found.low)},
               {"high", finite_or_null(found.high)},
               {"level", found.level},
               {"p_slower", found.p_slower},
               {"p_faster", found.p_faster},
               {"slower_than", found.slower_than},
               {"faster_than", found.faster_than},
               {"base_step_seconds", found.base_seconds},
               {"head_step_seconds", found.head_seconds},
               {"visible_slowdown", visible ? finite_or_null(*visible) : json(nullptr)}};
  }
  json written = cell.benchmark.empty() ? json{{"workload", cell.workload},
                                               {"base_backend", cell.base_backend},
                                               {"head_backend", cell.head_backend},
                                               {"precision", to_string(cell.precision)}}
                                        : json{{"benchmark", cell.benchmark}};
  written.update({{"verdict", verdict_word(cell)},
                  {"message", cell.message},
                  {"rounds", cell.rounds},
                  {"finding", finding},
                  {"pairs", pairs}});
  return written;
}

}  // namespace

std::string comparison_json(const Comparison& comparison) {
  json cells = json::array();
  for (const ComparedCell& cell : comparison.cells) cells.push_back(cell_json(cell, comparison));
  const GateRule& rule = comparison.rule;
  const json everything = {
      {"schema_version", 1},
      {"kind", comparison.kind},
      {"verdict", exit_code(comparison) == 1   ? "regression"
                  : exit_code(comparison) == 4 ? "not_comparable"
                  : exit_code(comparison) == 3 ? "inconclusive"
                                               : "no_regression"},
      {"exit_code", exit_code(comparison)},
      {"sentence", verdict_sentence(comparison)},
      {"started_utc", comparison.started_utc.empty() ? json(nullptr) : json(comparison.started_utc)},
      {"seconds", comparison.seconds},
      {"base", json{{"label", comparison.base}}},
      {"head", json{{"label", comparison.head}}},
      {"device", comparison.device
                     ? json({{"name", comparison.device->name}, {"driver", comparison.device->driver}})
                     : json(nullptr)},
      {"software", json(comparison.software)},
      {"rule",
       {{"tolerance", rule.tolerance},
        {"tolerance_seconds", rule.tolerance_seconds},
        {"level", rule.level},
        {"looks", rule.looks},
        {"widened_by", comparison.widened_by}}},
      {"planted_percent", comparison.planted_percent},
      {"cells", cells}};
  return everything.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace headroom
