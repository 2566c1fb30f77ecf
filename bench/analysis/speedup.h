// Speed-ups between the records of one results file, and what they say in one sentence.
//
// Only records of the same workload and precision (a cell) are compared, and only if both ran and passed their checks.
// References are the yardstick of the checks, never competitors. A rival that failed its verification may have been the
// fastest: until that is understood its cell has no speed-up.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/record.h"

namespace headroom {

bool is_pytorch(const Record& record);  ///< from Python or from C++
bool is_ours(const Record& record);
bool is_reference(const Record& record);
bool is_rival(const Record& record);  ///< neither ours nor a reference
/// Ran, has a time, and passed its checks.
bool counts(const Record& record);

/// The fastest PyTorch record of a workload and precision that counts; null if there is none. The pointer is
/// into `records`.
const Record* best_pytorch(const std::vector<Record>& records, const std::string& workload,
                           Precision precision);

/// The fastest record of a cell that counts and is a rival: PyTorch, JAX, a vendor's library or anybody's; likewise.
const Record* best_rival(const std::vector<Record>& records, const std::string& workload,
                         Precision precision);

/// Rivals of a cell that failed their verification, in the order of the records.
std::vector<std::string> refuted_rivals(const std::vector<Record>& records, const std::string& workload,
                                        Precision precision);
/// "libtorch-graph and jax-scan failed verification"; empty for none.
std::string refuted_text(const std::vector<std::string>& rivals);

/// One line of the table that a run ends with, in the order of the records.
struct SpeedupRow {
  const Record* record = nullptr;
  bool is_best_pytorch = false;
  std::string best_pytorch;                 ///< its backend; empty if there is none
  std::optional<double> over_best_pytorch;  ///< its time / this time
  std::string best_rival;  ///< likewise; the same as best_pytorch where no other rival is faster
  std::optional<double> over_best_rival;
  std::optional<double> over_pytorch_eager;
  std::vector<std::string> refuted_rivals;  ///< of its cell, which then has no speed-ups
};
std::vector<SpeedupRow> speedup_rows(const std::vector<Record>& records);

/// One sentence (and a second one about failures, if any): what the run found.
std::string finding(const std::vector<Record>& records);

}  // namespace headroom
