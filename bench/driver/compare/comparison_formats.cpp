#include "driver/compare/comparison_formats.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "analysis/statistics.h"
#include "driver/results/summary.h"
#include "driver/system/table.h"

namespace headroom {
namespace {

using json = nlohmann::ordered_json;

json finite_or_null(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

std::string dump(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

bool judged(const ComparedCell& cell) { return cell.state == CellState::kJudged; }

// "+3.1 %"; bounds that few pairs cannot give are none.
std::string percent(double ratio) {
  return std::isfinite(ratio) ? fmt::format("{:+.2f} %", 100 * (ratio - 1)) : "none";
}

std::string tolerance_text(const Comparison& comparison) {
  std::string text = fmt::format("{:.3g} %", 100 * comparison.rule.tolerance);
  if (comparison.widened_by > 0)
    text +=
        fmt::format(", widened by {:.3g} % for the drift between runs, as the two were not measured together",
                    100 * comparison.widened_by);
  return text;
}

struct Count {
  std::string word;
  int cells = 0;
};

// How many cells came to what, the alarming ones first.
std::vector<Count> counts_of(const Comparison& comparison) {
  std::vector<Count> counts;
  for (const char* word : {"failed", "missing", "regression", "inconclusive", "base failed", "improvement",
                           "equivalent", "new", "skipped"}) {
    Count count{word, 0};
    for (const ComparedCell& cell : comparison.cells) count.cells += verdict_word(cell) == word;
    if (count.cells > 0) counts.push_back(count);
  }
  return counts;
}

using Row = Table::Row;

// What a backend says of itself in every comparison, such as how it has laid out its kernel: only in the JSON.
bool is_plain_note(const ComparedCell& cell, const Comparison& comparison) {
  const bool measured = comparison.kind == "builds" || comparison.kind == "self-check";
  return measured && judged(cell) && comparison.planted_percent == 0;
}

std::vector<Row> table_rows(const Comparison& comparison) {
  std::vector<Row> rows;
  for (const ComparedCell& cell : comparison.cells) {
    const CellFinding& found = cell.finding;
    const bool has = judged(cell);
    std::string result = verdict_word(cell);
    const bool alarm = result == "failed" || result == "missing" || result == "regression";
    if (alarm)
      std::transform(result.begin(), result.end(), result.begin(),
                     [](unsigned char c) { return std::toupper(c); });
    if (!cell.message.empty() && !is_plain_note(cell, comparison)) result += ": " + cell.message;
    rows.push_back({cell.name(), has ? step_text(found.base_seconds) : "",
                    has ? step_text(found.head_seconds) : "", has ? percent(found.ratio) : "",
                    has ? fmt::format("{} .. {}", percent(found.low), percent(found.high)) : "", result});
  }
  return rows;
}

const Row kHeader = {"cell", "base", "head", "change", "interval", "result"};

std::string how_measured(const Comparison& comparison) {
  if (comparison.kind == "files") return "two results files";
  if (comparison.kind == "within") return "two backends of one run";
  std::size_t pairs = 0;
  int processes = 0;
  for (const ComparedCell& cell : comparison.cells) {
    pairs = std::max(pairs, cell.pairs.size());
    for (const BlockPair& pair : cell.pairs) processes = std::max(processes, pair.seconds.processes + 1);
  }
  return fmt::format("up to {} pairs of blocks a cell from {} pairs of fresh processes, {:.1f} s", pairs,
                     processes, comparison.seconds);
}

// How far two processes of the same build were apart, relative, in the worst case.
double largest_difference(const Comparison& comparison) {
  double most = 0;
  for (const ComparedCell& cell : comparison.cells) {
    std::map<int, std::vector<double>> by_processes;
    for (const BlockPair& pair : cell.pairs) {
      by_processes[pair.seconds.processes].push_back(
          std::abs(std::log(pair.seconds.head_seconds / pair.seconds.base_seconds)));
    }
    for (const auto& [processes, values] : by_processes) most = std::max(most, std::expm1(median(values)));
  }
  return most;
}

std::string visible_text(const Comparison& comparison) {
  double most = 1;
  for (const ComparedCell& cell : comparison.cells) {
    if (const auto ratio = visible_slowdown(cell, comparison)) most = std::max(most, *ratio);
  }
  std::string text = fmt::format(
      "Here, now, a slowdown of {:.2f} % in any of these cells would have been called a regression.",
      100 * (most - 1));
  // Pairs from the same processes share their luck; where that is large it takes more processes to see it.
  const double apart = largest_difference(comparison);
  if (apart > comparison.rule.tolerance)
    text += fmt::format(
        "\nTwo processes of this build were up to {:.2f} % apart: compare with --launches 6 --pairs 2 or "
        "more.",
        100 * apart);
  return text;
}

json side_json(const std::string& label) { return {{"label", label}}; }

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
  return {{"workload", cell.workload},
          {"base_backend", cell.base_backend},
          {"head_backend", cell.head_backend},
          {"precision", to_string(cell.precision)},
          {"verdict", verdict_word(cell)},
          {"message", cell.message},
          {"rounds", cell.rounds},
          {"finding", finding},
          {"pairs", pairs}};
}

}  // namespace

std::string verdict_sentence(const Comparison& comparison) {
  std::string text;
  for (const auto& [word, cells] : counts_of(comparison))
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", cells, word);
  const int code = exit_code(comparison);
  return fmt::format("{}: {} (tolerance {}).",
                     code == 1   ? "REGRESSION"
                     : code == 3 ? "Inconclusive"
                                 : "No regression",
                     text, tolerance_text(comparison));
}

std::string comparison_text(const Comparison& comparison, std::size_t width) {
  enum Column : std::size_t { kBase = 1, kHead, kChange, kInterval };
  const Table table{
      kHeader, table_rows(comparison), {kBase, kHead, kChange, kInterval}, 0, {kInterval, kBase, kHead}};
  std::string text =
      fmt::format("base: {}\nhead: {}\n\n{}", comparison.base, comparison.head, table_text(table, width));
  text += fmt::format("\n{}\n{}\n", how_measured(comparison), verdict_sentence(comparison));
  if (comparison.kind == "self-check" && comparison.planted_percent == 0)
    text += visible_text(comparison) + "\n";
  return wrapped(text, width);
}

std::string comparison_markdown(const Comparison& comparison) {
  const auto escaped = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
      text.insert(at, 1, '\\');
    return text;
  };
  const auto line = [&](const Row& row) {
    std::string text = "|";
    for (const std::string& field : row) text += fmt::format(" {} |", escaped(field));
    return text + "\n";
  };
  std::string text = fmt::format("### Step time: {}\n\nbase `{}`, head `{}`{}\n\n",
                                 verdict_sentence(comparison), comparison.base, comparison.head,
                                 comparison.device ? ", on " + comparison.device->name : "");
  text += line(kHeader) + "| --- | ---: | ---: | ---: | ---: | --- |\n";
  for (const Row& row : table_rows(comparison)) text += line(row);
  text += fmt::format("\n{}\n", how_measured(comparison));
  if (comparison.kind == "self-check" && comparison.planted_percent == 0)
    text += fmt::format("\n{}\n", visible_text(comparison));
  return text;
}

std::string comparison_json(const Comparison& comparison) {
  json cells = json::array();
  for (const ComparedCell& cell : comparison.cells) cells.push_back(cell_json(cell, comparison));
  const GateRule& rule = comparison.rule;
  const json everything = {{"schema_version", 1},
                           {"kind", comparison.kind},
                           {"verdict", exit_code(comparison) == 1   ? "regression"
                                       : exit_code(comparison) == 3 ? "inconclusive"
                                                                    : "no_regression"},
                           {"exit_code", exit_code(comparison)},
                           {"sentence", verdict_sentence(comparison)},
                           {"started_utc", comparison.started_utc},
                           {"seconds", comparison.seconds},
                           {"base", side_json(comparison.base)},
                           {"head", side_json(comparison.head)},
                           {"device", comparison.device ? json({{"name", comparison.device->name},
                                                                {"driver", comparison.device->driver}})
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

std::string comparison_google_benchmark(const Comparison& comparison) {
  json runs = json::array();
  int family = 0;
  for (const ComparedCell& cell : comparison.cells) {
    if (!judged(cell)) continue;  // the tool knows no cell without a time
    for (const bool head : {false, true}) {
      const std::string name = fmt::format("{}/{}", head ? "head" : "base", cell.name());
      for (std::size_t i = 0; i < cell.pairs.size(); ++i) {
        const BlockPair& pair = cell.pairs[i];
        runs.push_back({{"name", name},
                        {"family_index", family},
                        {"per_family_instance_index", 0},
                        {"run_name", name},
                        {"run_type", "iteration"},
                        {"repetitions", cell.pairs.size()},
                        {"repetition_index", i},
                        {"threads", 1},
                        {"iterations", head ? pair.head_steps : pair.base_steps},
                        {"real_time", 1e6 * (head ? pair.seconds.head_seconds : pair.seconds.base_seconds)},
                        {"cpu_time", 1e6 * (head ? pair.head_cpu_seconds : pair.base_cpu_seconds)},
                        {"time_unit", "us"}});
      }
      ++family;
    }
  }
  return dump({{"context",
                {{"date", comparison.started_utc},
                 {"executable", "headroom compare"},
                 {"library_build_type", "release"},
                 {"caches", json::array()},
                 {"base", comparison.base},
                 {"head", comparison.head}}},
               {"benchmarks", runs}});
}

std::string comparison_bencher(const Comparison& comparison) {
  json metrics = json::object();
  for (const ComparedCell& cell : comparison.cells) {
    if (!judged(cell)) continue;
    const CellFinding& found = cell.finding;
    const auto scaled = [&](double factor) {
      json metric = {{"value", factor * found.ratio}};
      if (std::isfinite(found.low)) metric["lower_value"] = factor * found.low;
      if (std::isfinite(found.high)) metric["upper_value"] = factor * found.high;
      return metric;
    };
    // The format's latency is in nanoseconds. Head's is base's median times the ratio that the pairs gave.
    metrics[cell.name()] = {{"latency", scaled(1e9 * found.base_seconds)}, {"head-over-base", scaled(1)}};
  }
  return dump(metrics);
}

std::string comparison_github_action(const Comparison& comparison) {
  json entries = json::array();
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
  return dump(entries);
}

std::string formatted(const Comparison& comparison, CompareFormat format, std::size_t width) {
  switch (format) {
    case CompareFormat::kText:
      break;
    case CompareFormat::kMarkdown:
      return comparison_markdown(comparison);
    case CompareFormat::kJson:
      return comparison_json(comparison);
    case CompareFormat::kGoogleBenchmark:
      return comparison_google_benchmark(comparison);
    case CompareFormat::kBencher:
      return comparison_bencher(comparison);
    case CompareFormat::kGithubActionBenchmark:
      return comparison_github_action(comparison);
  }
  return comparison_text(comparison, width);
}

}  // namespace headroom
