#include "driver/compare/comparison.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/error.h"

namespace headroom {
namespace {

PairedCell paired(const ComparedCell& cell) {
  PairedCell result{cell.name(), {}};
  for (const BlockPair& pair : cell.pairs) result.pairs.push_back(pair.seconds);
  return result;
}

bool any(const Comparison& comparison, auto&& of) {
  return std::any_of(comparison.cells.begin(), comparison.cells.end(), of);
}

}  // namespace

std::string ComparedCell::name() const {
  if (!benchmark.empty()) return benchmark;
  const std::string backends =
      base_backend == head_backend ? base_backend : fmt::format("{}->{}", base_backend, head_backend);
  return fmt::format("{}/{}/{}", workload, backends, to_string(precision));
}

std::string verdict_word(const ComparedCell& cell) {
  switch (cell.state) {
    case CellState::kFailed:
      return "failed";
    case CellState::kMissing:
      return "missing";
    case CellState::kBaseFailed:
      return "base failed";
    case CellState::kChoseOtherwise:
      return "chose otherwise";
    case CellState::kTooFew:
      return "cannot tell";
    case CellState::kNew:
      return "new";
    case CellState::kSkipped:
      return "skipped";
    case CellState::kJudged:
      break;
  }
  return std::string(to_string(cell.finding.finding));
}

std::string other_choice(const std::string& base_took, const std::string& head_took) {
  return fmt::format("base took {}, head took {}; compare these with --backend", base_took, head_took);
}

void judge(Comparison& comparison, bool second_look) {
  std::vector<PairedCell> cells;
  std::vector<ComparedCell*> judged;
  for (ComparedCell& cell : comparison.cells) {
    if (cell.state != CellState::kJudged) continue;
    cells.push_back(paired(cell));
    judged.push_back(&cell);
  }
  if (judged.empty()) {
    const bool failed = any(comparison, [](const ComparedCell& cell) {
      return cell.state != CellState::kNew && cell.state != CellState::kSkipped;
    });
    if (failed) return;
    std::string why = comparison.cells.empty() ? "there are none" : comparison.cells.front().message;
    throw InputError(fmt::format("no cell of '{}' and '{}' can be compared: {}", comparison.base,
                                 comparison.head, why.empty() ? "none is on both sides" : why));
  }
  std::vector<CellFinding> findings;
  if (second_look) {
    std::vector<CellFinding> earlier;
    for (const ComparedCell* cell : judged) earlier.push_back(cell->finding);
    findings = judge_again(cells, comparison.rule, earlier);
  } else {
    findings = judge_suite(cells, comparison.rule);
  }
  for (std::size_t i = 0; i < judged.size(); ++i) judged[i]->finding = findings[i];
}

int exit_code(const Comparison& comparison) {
  const auto alarm = [](const ComparedCell& cell) {
    return cell.state == CellState::kFailed || cell.state == CellState::kMissing ||
           (cell.state == CellState::kJudged && cell.finding.finding == Finding::kRegression);
  };
  if (any(comparison, alarm)) return 1;
  if (any(comparison, [](const ComparedCell& cell) { return cell.state == CellState::kChoseOtherwise; }))
    return 4;
  const auto unknown = [](const ComparedCell& cell) {
    return cell.inconclusive() || cell.state == CellState::kBaseFailed || cell.state == CellState::kTooFew;
  };
  return any(comparison, unknown) ? 3 : 0;
}

std::optional<double> visible_slowdown(const ComparedCell& cell, const Comparison& comparison) {
  if (cell.state != CellState::kJudged) return std::nullopt;
  const auto judged = std::count_if(comparison.cells.begin(), comparison.cells.end(),
                                    [](const auto& other) { return other.state == CellState::kJudged; });
  const double level = comparison.rule.level / comparison.rule.looks / static_cast<double>(judged);
  return visible_slowdown(paired(cell), comparison.rule, level);
}

}  // namespace headroom
