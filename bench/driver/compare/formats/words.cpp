#include "driver/compare/formats/words.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "analysis/statistics.h"
#include "driver/system/units.h"

namespace headroom {
namespace {

std::string tolerance_text(const Comparison& comparison) {
  std::string text = fmt::format("{:.3g} %", 100 * comparison.rule.tolerance);
  if (comparison.widened_by > 0)
    text +=
        fmt::format(", widened by {:.3g} % for the drift between runs, as the two were not measured together",
                    100 * comparison.widened_by);
  return text;
}

// A benchmark of another tool may take nanoseconds.
std::string time_text(double seconds) {
  return seconds < 1e-7 ? fmt::format("{:.3g} ns", 1e9 * seconds) : step_text(seconds);
}

struct Count {
  std::string word;
  int cells = 0;
};

// How many cells came to what, the alarming ones first.
std::vector<Count> counts_of(const Comparison& comparison) {
  std::vector<Count> counts;
  for (const char* word : {"failed", "missing", "regression", "chose otherwise", "inconclusive",
                           "cannot tell", "base failed", "improvement", "equivalent", "new", "skipped"}) {
    Count count{word, 0};
    for (const ComparedCell& cell : comparison.cells) count.cells += verdict_word(cell) == word;
    if (count.cells > 0) counts.push_back(count);
  }
  return counts;
}

// What a backend says of itself in every comparison, such as how it has laid out its kernel: only in the JSON.
bool is_plain_note(const ComparedCell& cell, const Comparison& comparison) {
  const bool measured = comparison.kind == "builds" || comparison.kind == "self-check";
  return measured && judged(cell) && comparison.planted_percent == 0;
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

}  // namespace

bool judged(const ComparedCell& cell) { return cell.state == CellState::kJudged; }

// "+3.1 %"; bounds that few pairs cannot give are none.
std::string percent(double ratio) {
  return std::isfinite(ratio) ? fmt::format("{:+.2f} %", 100 * (ratio - 1)) : "none";
}

std::string shown_verdict(std::string verdict) {
  if (verdict == "failed" || verdict == "missing" || verdict == "regression")
    std::transform(verdict.begin(), verdict.end(), verdict.begin(),
                   [](unsigned char c) { return std::toupper(c); });
  return verdict;
}

std::string verdict_sentence(const Comparison& comparison) {
  std::string text;
  for (const auto& [word, cells] : counts_of(comparison))
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", cells, word);
  const int code = exit_code(comparison);
  return fmt::format("{}: {} (tolerance {}).",
                     code == 1   ? "REGRESSION"
                     : code == 4 ? "Not comparable"
                     : code == 3 ? "Inconclusive"
                                 : "No regression",
                     text, tolerance_text(comparison));
}

Table::Row comparison_header() { return {"cell", "base", "head", "change", "interval", "result"}; }

std::vector<Table::Row> comparison_rows(const Comparison& comparison) {
  std::vector<Table::Row> rows;
  for (const ComparedCell& cell : comparison.cells) {
    const CellFinding& found = cell.finding;
    const bool has = judged(cell);
    std::string result = shown_verdict(verdict_word(cell));
    if (!cell.message.empty() && !is_plain_note(cell, comparison)) result += ": " + cell.message;
    rows.push_back({cell.name(), has ? time_text(found.base_seconds) : "",
                    has ? time_text(found.head_seconds) : "", has ? percent(found.ratio) : "",
                    has ? fmt::format("{} .. {}", percent(found.low), percent(found.high)) : "", result});
  }
  return rows;
}

std::string how_measured(const Comparison& comparison) {
  if (comparison.kind == "files") return "two results files";
  if (comparison.kind == "google-benchmark") return "two Google Benchmark files";
  if (comparison.kind == "nvbench") return "two NVBench files";
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

bool shows_what_is_visible(const Comparison& comparison) {
  return comparison.kind == "self-check" && comparison.planted_percent == 0;
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

}  // namespace headroom
