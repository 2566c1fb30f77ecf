#include <fmt/core.h>

#include <algorithm>

#include "analysis/signed_rank.h"
#include "core/error.h"
#include "driver/compare/other_tools/other_tools.h"

namespace headroom {
namespace {

using State = OtherBenchmark::State;

void compare_machines(const OtherFile& base, const OtherFile& head) {
  for (const auto& [field, value] : base.machine) {
    for (const auto& [other_field, other] : head.machine) {
      if (field == other_field && value != other)
        throw NotComparableError(fmt::format("{} and {} are not comparable: {} is '{}' and '{}'", base.name,
                                             head.name, field, value, other));
    }
  }
}

const OtherBenchmark* find(const OtherFile& file, const std::string& name) {
  const auto found = std::find_if(file.benchmarks.begin(), file.benchmarks.end(),
                                  [&](const OtherBenchmark& benchmark) { return benchmark.name == name; });
  return found == file.benchmarks.end() ? nullptr : &*found;
}

// First with first, as both are samples over their whole run; of more than the statistics take, evenly.
std::vector<BlockPair> pair_samples(const OtherBenchmark& base, const OtherBenchmark& head) {
  const std::size_t both = std::min(base.seconds.size(), head.seconds.size());
  const std::size_t count = std::min<std::size_t>(both, kMostSignedRankValues);
  std::vector<BlockPair> pairs;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i * both / count;
    pairs.push_back({{base.seconds[at], head.seconds[at], 0},
                     base.cpu_seconds[at],
                     head.cpu_seconds[at],
                     base.iterations[at],
                     head.iterations[at],
                     false,
                     1});
  }
  return pairs;
}

std::string samples_text(const OtherBenchmark& benchmark) {
  return benchmark.note.empty() ? fmt::format("{}", benchmark.seconds.size()) : benchmark.note;
}

std::string why_not(const OtherBenchmark* benchmark) {
  if (benchmark == nullptr) return "not in the file";
  return benchmark->state == State::kSkipped ? "skipped: " + benchmark->note : benchmark->note;
}

bool is(const OtherBenchmark* benchmark, State state) {
  return benchmark != nullptr && benchmark->state == state;
}

// Of one that is in at least one of the files (null: not in that one).
ComparedCell begin_cell(const OtherBenchmark* base, const OtherBenchmark* head) {
  ComparedCell cell;
  cell.benchmark = (base != nullptr ? base : head)->name;
  if (is(head, State::kFailed)) {
    cell.state = CellState::kFailed;
    cell.message = "head: " + why_not(head);
  } else if (is(base, State::kMeasured) && is(head, State::kMeasured)) {
    cell.pairs = pair_samples(*base, *head);
    if (cell.pairs.size() < kLeastPairs) {
      cell.pairs.clear();
      cell.state = CellState::kTooFew;
      cell.message = fmt::format("samples: base {}; head {}; expected at least {}", samples_text(*base),
                                 samples_text(*head), kLeastPairs);
    }
  } else if (is(head, State::kMeasured)) {
    cell.state = is(base, State::kFailed) ? CellState::kBaseFailed : CellState::kNew;
    cell.message = "base: " + why_not(base);
  } else {
    cell.state = is(base, State::kMeasured) ? CellState::kMissing : CellState::kSkipped;
    cell.message = "head: " + why_not(head);
  }
  return cell;
}

}  // namespace

Comparison compare_other_tools(const OtherFile& base, const OtherFile& head, const GateRule& rule) {
  compare_machines(base, head);
  Comparison comparison;
  comparison.kind = base.tool == Tool::kNvbench ? "nvbench" : "google-benchmark";
  comparison.base = base.name;
  comparison.head = head.name;
  comparison.software = head.software;
  comparison.rule = rule;
  comparison.rule.looks = 1;  // there is nothing more to measure
  comparison.rule.tolerance_seconds = 0;
  comparison.widened_by = kRunDrift;
  comparison.rule.tolerance = (1 + rule.tolerance) * (1 + kRunDrift) - 1;
  bool common = false;
  for (const OtherBenchmark& benchmark : base.benchmarks) {
    const OtherBenchmark* other = find(head, benchmark.name);
    common = common || other != nullptr;
    comparison.cells.push_back(begin_cell(&benchmark, other));
  }
  for (const OtherBenchmark& benchmark : head.benchmarks) {
    if (find(base, benchmark.name) == nullptr) comparison.cells.push_back(begin_cell(nullptr, &benchmark));
  }
  if (!common)
    throw InputError(fmt::format("{} and {} have no benchmark in common; expected the same program's",
                                 base.name, head.name));
  return comparison;
}

}  // namespace headroom
