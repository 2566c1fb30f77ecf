// Step times over commits, from results files: `headroom history`.
//
// Files of one device and one commit are one point of its cells. A point is compared with the one before it as `compare
// BASE.json HEAD.json` compares files, so the rule of the gate (analysis/gate.h) is in one place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/gate.h"
#include "core/record.h"
#include "driver/compare/file_comparison.h"
#include "driver/plan/options.h"

namespace headroom {

/// Files that were measured on one commit. One with changes that are in no commit has nothing in common with other files of its
/// commit but the same changes.
struct HistorySource {
  std::string commit;         ///< hexadecimal digits
  std::optional<bool> dirty;  ///< whether there were changes; nullopt: not known
  std::string date;           ///< when the first of the files was started, ISO 8601 in UTC
  std::vector<std::string> files;

  std::string label() const;  ///< "a1b2c3d4e", with a '+' where there were changes
};

/// A cell at one source.
struct HistoryPoint {
  std::size_t source = 0;                   ///< index in the device's sources
  std::optional<StepSeconds> step_seconds;  ///< nullopt: it failed
  std::int64_t blocks = 0;
  /// "first", "not compared", "failed", or what compare says of a cell: "regression", "improvement", "equivalent",
  /// "inconclusive", "chose otherwise".
  std::string change;
  std::optional<CellFinding> finding;        ///< of the gate's rule, if it judged
  std::optional<std::size_t> compared_with;  ///< the source before; nullopt: there is none, or it failed
  std::string message;                       ///< why it failed or was not compared, or a note
};

struct CellHistory {
  std::string workload, trained;  ///< `trained`: default_name() of the workload
  std::string backend;
  Precision precision = Precision::kFp32;
  std::vector<HistoryPoint> points;

  std::string name() const;  ///< "mlp-784x10-b32/cuda-layered/fp32"
};

struct DeviceHistory {
  std::string device;
  bool by_commit =
      false;  ///< the sources are in the order of their commits' dates, else in that of their own
  std::vector<HistorySource> sources;
  std::vector<CellHistory> cells;
};

struct FileNote {
  std::string file, text;
};

struct History {
  GateRule rule;          ///< with the tolerance that was used
  double widened_by = 0;  ///< relative: what was added to it, as files are not measured together
  std::vector<DeviceHistory> devices;
  std::vector<FileNote> left_out;  ///< files that are in no point, with the reason
  std::vector<FileNote> notes;     ///< files that are, and of which something has to be said

  /// How many points have this change.
  std::int64_t count(const std::string& change) const;
};

/// `commit_times`: the date of each commit that is known, in seconds since 1970, by its full name.
History make_history(const std::vector<NamedResults>& files, const GateRule& rule,
                     const std::map<std::string, std::int64_t>& commit_times);

/// The files of the command line. Throws InputError for one that is no results file, and if none is left.
History read_history(const HistoryOptions& options);

/// Draws it into the folder --output (plots/history.py). Returns false where that failed, which the program there has said.
bool draw_history(const History& history, const HistoryOptions& options);

}  // namespace headroom
