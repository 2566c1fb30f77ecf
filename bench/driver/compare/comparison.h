// A comparison of two sides, cell by cell: what `headroom compare` measures or reads, judges and reports.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "analysis/gate.h"
#include "core/record.h"

namespace headroom {

/// The two sides are of different devices, drivers, workloads or protocols. Exit code 4.
class NotComparableError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A pair of blocks and how it was measured.
struct BlockPair {
  TimedPair seconds;                                  ///< of a step, device time
  double base_cpu_seconds = 0, head_cpu_seconds = 0;  ///< of a step, all threads of the worker
  std::int64_t base_steps = 0, head_steps = 0;
  bool head_first = false;
  int round = 1;
};

/// kJudged has a finding. The others are verdicts of their own: head failed, head lacks the cell, base failed where head
/// did not (so nothing can be said), the two sides took different backends (core/choice.h), another tool's file has too few
/// samples of it, only head has it, neither side can run it here.
enum class CellState { kJudged, kFailed, kMissing, kBaseFailed, kChoseOtherwise, kTooFew, kNew, kSkipped };

struct ComparedCell {
  std::string benchmark;  ///< of another tool, by its name there; the next four then mean nothing
  std::string workload, base_backend, head_backend;  ///< the same backend unless two of one file are compared
  Precision precision = Precision::kFp32;
  CellState state = CellState::kJudged;
  std::string message;  ///< why it failed, is missing, ...; else a note, possibly empty
  std::vector<BlockPair> pairs;
  CellFinding finding;  ///< kJudged only
  int rounds = 1;       ///< in which its pairs were measured

  std::string name() const;  ///< "mlp-784x10-b32/cuda-layered/fp32", or the benchmark's
  bool inconclusive() const {
    return state == CellState::kJudged && finding.finding == Finding::kInconclusive;
  }
};
/// "regression", "failed", "missing", ...: one word for what became of a cell.
std::string verdict_word(const ComparedCell& cell);

struct Comparison {
  std::string kind;        ///< "builds", "files", "within", "self-check", "google-benchmark", "nvbench"
  std::string base, head;  ///< what the sides are called
  std::optional<DeviceInfo> device;
  std::map<std::string, std::string> software;  ///< of head
  std::string started_utc;                      ///< empty: the files do not say
  double seconds = 0;                           ///< how long measuring took, on a steady clock
  GateRule rule;                                ///< its tolerance is what was used, widened or not
  double widened_by =
      0;  ///< relative; what was added to the tolerance because the sides were not measured together
  double planted_percent = 0;
  std::vector<ComparedCell> cells;
};

/// What kChoseOtherwise says.
std::string other_choice(const std::string& base_took, const std::string& head_took);

/// Judges every cell that has pairs; at the second look only what was inconclusive at the first.
/// Throws InputError if there is nothing to judge and nothing failed.
void judge(Comparison& comparison, bool second_look = false);

/// 0 no regression, 1 a regression, a failed or a missing cell, 4 a cell whose sides chose otherwise, 3 inconclusive, too few
/// samples, or nothing of base to compare with.
int exit_code(const Comparison& comparison);

/// What the self-check is for: the smallest slowdown, as a ratio, that would have been called a regression in every
/// judged cell, had all been slowed down alike; nullopt without one.
std::optional<double> visible_slowdown(const ComparedCell& cell, const Comparison& comparison);

}  // namespace headroom
