// One (workload, precision): all its backends prepared, checked, timed together and, if asked, trained for
// their loss curves. A backend that fails costs its own record; the others go on.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "driver/plan/plan.h"
#include "driver/run/measurement.h"
#include "driver/run/progress.h"
#include "driver/run/training_files.h"
#include "driver/run/verify.h"
#include "driver/run/worker_pool.h"
#include "driver/system/made_folder.h"

namespace headroom {

/// Bytes of synthetic training data, at least, where the L2 of the device is not known: they have to outgrow it.
inline constexpr std::int64_t kLeastTrainBytes = std::int64_t{1} << 28;

/// What all groups of a run share.
struct RunContext {
  const RunOptions& options;
  const Plan& plan;
  const std::vector<BackendRow>& table;
  WorkerPool& pool;
  Progress& progress;
  std::filesystem::path folder;  ///< for training files
  std::string cache_folder;      ///< for compiled code; empty: nowhere
  std::int64_t least_train_bytes = kLeastTrainBytes;
  bool has_device = false;
  const BackendRow* gpu_oracle =
      nullptr;  ///< of `table`: the reference that runs on the device; null for none
  /// Of the run's devices, the first of them first; those of which NVML says nothing are null.
  std::vector<GpuMonitor*> monitors = {};

  /// Of the devices that train it; empty where NVML says nothing of one of them.
  std::vector<GpuMonitor*> monitors_of(const Workload& workload) const;
};

/// The training files of one workload: those of its own seed, and of each seed of the loss runs when first
/// needed.
class WorkloadFiles {
 public:
  WorkloadFiles(const RunContext& context, const Workload& workload);
  const TrainingFiles& own() const { return own_; }
  const TrainingFiles& with_seed(std::uint64_t seed);
  const std::filesystem::path& folder() const { return folder_.path(); }

 private:
  const RunContext& context_;
  MadeFolder folder_;
  TrainingFiles own_;
  std::map<std::uint64_t, TrainingFiles> others_;
};

class GroupRun {
 public:
  GroupRun(const RunContext& context, const Workload& workload, const Group& group, std::string title);

  /// Whether any backend is left that runs; what cannot run here is a skipped record from the start.
  bool any_left() const;
  void make_reference(WorkloadFiles& files);
  void prepare_and_check(WorkloadFiles& files);
  void time_blocks();
  void measure_energies();
  void release();
  /// `eager`: the fp32 curves of pytorch-eager for this workload; empty if there are none.
  void train_losses(WorkloadFiles& files, const std::vector<LossCurve>& eager);
  /// Everything that is left fails with this message.
  void fail_all(const std::string& message);

  std::vector<Record> records() const;
  /// What was taken, by the name of the backend that chose.
  std::map<std::string, Choice> choices() const;

 private:
  struct Cell {
    BackendRow row;
    Record record;
    std::optional<Choice> choice;
    WorkerClient* client = nullptr;
    double largest_loss = 0;
    std::int64_t next_step = 0;  ///< after the timed ones
    bool left() const { return record.outcome == Outcome::kOk; }
  };
  void attempt(Cell& cell, const std::string& what, const std::function<void()>& work);
  Prepared prepare(WorkerClient& client, const std::string& backend, const TrainingFiles& files);
  void check(WorkloadFiles& files);
  void fail(Cell& cell, const std::string& message);
  void status(const std::string& backend, const std::string& what, bool important = false) const;
  void check_timed_losses(Cell& cell, const TimedTrainer& trainer);

  const RunContext& context_;
  Workload workload_;
  Precision precision_;
  std::string title_;  ///< "[1/4] mlp-... fp32"
  std::vector<Cell> cells_;
  std::optional<Reference> reference_;
  std::filesystem::path folder_;
};

}  // namespace headroom
