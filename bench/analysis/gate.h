// The verdict of the regression gate: paired step times of two builds in, a finding for each cell out.
//
// Pure functions. Each cell's values are the logarithms of head over base, one for each pair. Pairs that were taken in
// the same two processes share those processes' luck (two processes of the same build differ by where their memory
// lies), so a cell's pairs are not independent: besides the signed-rank test over all of them, a slowdown must show in
// the process pairs one by one before it is called one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headroom {

/// Step times of base and head, in seconds, measured next to each other.
struct TimedPair {
  double base_seconds = 0, head_seconds = 0;
  int processes = 0;  ///< which pair of processes it was measured in
};

/// One (workload, backend, precision) on both sides.
struct PairedCell {
  std::string name;  ///< unique in its suite
  std::vector<TimedPair> pairs;
};

inline constexpr int kLeastPairs = 12;
/// One process pair in so many may disagree: two rounds of three launches forgive one.
inline constexpr int kProcessPairsForAnOddOne = 6;

/// How far the same build's step may move from one run to another, relative: by so much the tolerance is widened where
/// two files are compared. Measured, rounded up; see between_runs in results/h200/gate.json.
inline constexpr double kRunDrift = 0.02;

struct GateRule {
  double tolerance = 0.02;             ///< relative: what is as good as the same
  double tolerance_seconds = 0.05e-6;  ///< absolute: a change must exceed both
  double level = 0.01;                 ///< one-sided, across all cells of the suite and all looks
  int looks = 2;  ///< how often the suite may be judged; each look gets its share of the level
};

enum class Finding { kRegression, kImprovement, kEquivalent, kInconclusive };
std::string_view to_string(Finding finding);  ///< "regression", "improvement", "equivalent", "inconclusive"

/// Ratios are head over base: 1.03 is 3 % slower.
struct CellFinding {
  Finding finding = Finding::kInconclusive;
  double ratio = 1, low = 0, high = 0;        ///< Hodges-Lehmann, and its bounds at `level`, each one-sided
  double level = 0;                           ///< what Holm's procedure left for this cell
  double slower_than = 1, faster_than = 1;    ///< the tolerance as ratios: above 1 and below 1
  double base_seconds = 0, head_seconds = 0;  ///< medians
  double p_slower = 1,
         p_faster = 1;  ///< one-sided p-values of "not slower (faster) than the tolerance allows"
  int pairs = 0;
};

/// Judges a whole suite, in the order of `cells`.
///
/// Holm's procedure runs twice, for slower and for faster, over one-sided p-values at level / looks. Regression: the
/// cell is rejected for slower (its lower bound at the level that Holm left is over the tolerance) and the median of
/// every process pair is over it too, of six pairs or more all but one in six. Improvement: the mirror image. Equivalent:
/// the interval lies inside the tolerance.
/// Inconclusive: anything else.
/// Throws std::invalid_argument for no cells, two of the same name, fewer than kLeastPairs pairs in one, or times that
/// are not finite and positive.
std::vector<CellFinding> judge_suite(std::span<const PairedCell> cells, const GateRule& rule);

/// The second look, after more pairs were measured for the cells that were inconclusive: these are judged anew on all of
/// their pairs, and that is final; the other findings stay as they were. `earlier` is in the order of `cells`.
std::vector<CellFinding> judge_again(std::span<const PairedCell> cells, const GateRule& rule,
                                     std::span<const CellFinding> earlier);

/// The smallest true slowdown, as a ratio, that these pairs would have shown as a regression if head had been that much
/// slower throughout: measured on equal builds it says how small a slowdown can be seen. A factor on all of head's times
/// only moves the logarithms, so no new measurement is needed.
/// `level`: of the cell, such as level / looks / cells.
double visible_slowdown(const PairedCell& cell, const GateRule& rule, double level);

}  // namespace headroom
