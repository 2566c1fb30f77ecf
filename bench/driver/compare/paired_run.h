// Two builds measured against each other on this machine, now: pairs of blocks of base and head, in random order.
//
// A round is a few launches. A launch starts fresh processes of both builds and takes, for every cell in random order, a
// few pairs of blocks: the same steps on the same batches, one side right after the other, so that what drifts drifts
// under both. Which side of a pair comes first is balanced and random (ABBA or BAAB) and recorded.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "driver/compare/comparison.h"
#include "driver/compare/sides.h"
#include "driver/plan/plan.h"
#include "driver/run/progress.h"
#include "driver/run/training_files.h"
#include "driver/run/verify.h"

namespace headroom {

/// Training files and the oracle's points of each workload; made when first needed, kept for further comparisons.
class ComparedFiles {
 public:
  explicit ComparedFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  const TrainingFiles& training(const Workload& workload);
  /// `gpu_oracle`: the reference of a build that runs on the device; used where the CPU would take minutes. Null for none.
  const Reference& reference(const Workload& workload, Precision precision, const OfferedBackend* gpu_oracle,
                             WorkerClient* client);
  std::filesystem::path scratch() const { return folder_; }
  /// Of compiled code and choices, for both sides: what was found out once is the same in every process.
  std::string cache_folder() const { return (folder_ / "compiled").string(); }
  /// Which side's cells have passed their checks: a build is not checked again for every repetition.
  std::set<std::pair<Side, std::string>>& verified() { return verified_; }

 private:
  std::filesystem::path folder_;
  std::map<std::string, TrainingFiles> training_;
  std::map<std::pair<std::string, Precision>, Reference> references_;
  std::set<std::pair<Side, std::string>> verified_;
};

class PairedRun {
 public:
  PairedRun(const CompareOptions& options, const Plan& plan, const std::vector<BackendRow>& table,
            SidePools& pools, ComparedFiles& files, Progress& progress, std::uint64_t seed);

  /// One round over all cells, or over those that are inconclusive so far. Whatever goes wrong with one cell of one side
  /// ends in that cell. Throws NotComparableError for another protocol.
  void measure_round(int round);

  Comparison& comparison() { return comparison_; }

 private:
  /// A cell, and what is decided once for both sides.
  struct Cell {
    std::size_t index = 0;  ///< in the comparison
    Workload workload;
    BackendRow row;
    std::int64_t steps = 0, warmup_steps = 0;
    std::array<std::set<std::string>, 2> taken =
        {};  ///< by the processes of a side, where the backend takes one of several
  };
  ComparedCell& compared(const Cell& cell) { return comparison_.cells[cell.index]; }
  WorkerPool& pool(Side side) { return pool_of(pools_, side); }
  WorkerClient& client(Side side, const Cell& cell) { return pool(side).greeted(cell.row.worker); }
  /// Of a program that has answered.
  const WorkerHello& hello(Side side, const Cell& cell) {
    return *pool(side).greeting(cell.row.worker).hello;
  }
  void measure_launch(int round, int processes);
  void measure_cell(Cell& cell, int round, int processes);
  bool offered(Cell& cell);
  void prepare(Side side, Cell& cell);
  /// Prepares too; what was verified before is only prepared.
  void check(Side side, Cell& cell);
  /// False if not all processes of both sides took the same backend; the cell says so.
  bool chose_alike(Cell& cell);
  void choose_steps(Side side, Cell& cell);
  void take_pairs(Cell& cell, int round, int processes);
  void check_losses(Side side, Cell& cell, std::int64_t steps);
  /// Runs one side's work on a cell; false if it failed, with the cell told.
  template <typename Work>
  bool attempt(Side side, Cell& cell, const std::string& what, Work&& work);
  /// Both sides' work, head's also where base has failed: whether both succeeded.
  template <typename Work>
  bool on_both(bool head_first, Cell& cell, const std::string& what, Work&& work);
  /// One side does not have the cell, or has failed at it.
  void lack(Side side, Cell& cell, const std::string& message);
  void fail(Side side, Cell& cell, const std::string& message);
  void settle(Side side, Cell& cell, CellState state, const std::string& message);

  const CompareOptions& options_;
  SidePools& pools_;
  ComparedFiles& files_;
  Progress& progress_;
  std::mt19937_64 random_;
  std::vector<Cell> cells_;
  Comparison comparison_;
};

}  // namespace headroom
