#include "driver/run/compile_ahead.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "driver/system/interruption.h"

namespace headroom {
namespace {

/// What code is compiled for where there is no device to ask: an H100 or H200.
constexpr TargetDevice kUsualTarget{
    .compute_major = 9, .compute_minor = 0, .sm_count = 132, .shared_bytes = 227 * 1024};

/// A workload, and its files from its first cell to its last.
struct SharedFiles {
  const Workload* workload = nullptr;
  int cells_left = 0;
  std::optional<WorkloadFiles> files;
};

struct Cell {
  SharedFiles* shared = nullptr;
  Precision precision = Precision::kFp32;
  const BackendRow* row = nullptr;

  /// In order only. Torch.compile times candidates for each product of a layer, which takes longer where products are
  /// larger; a kernel of ours takes seconds.
  std::tuple<bool, std::size_t, double> compile_time() const {
    const Workload& workload = *shared->workload;
    return {row->family != Family::kOurs, workload.model.widths.size(), workload.flops_per_step()};
  }
};

class AheadOfTime {
 public:
  AheadOfTime(const RunContext& context, int processes) : context_(context) {
    for (const PlannedWorkload& planned : context.plan.workloads) {
      SharedFiles& shared = shared_.emplace_back();
      shared.workload = &planned.workload;
      for (const Group& group : planned.groups) {
        for (const std::string& backend : group.backends) {
          const BackendRow& row = row_of(context.table, backend);
          if (!row.compiles || !can_compile(row, group.precision, planned.workload.devices)) continue;
          cells_.push_back({&shared, group.precision, &row});
          ++shared.cells_left;
        }
      }
    }
    // What takes long begins first, and what is short fills the end.
    std::stable_sort(cells_.begin(), cells_.end(), [](const Cell& one, const Cell& other) {
      return one.compile_time() > other.compile_time();
    });
    cells_left_ = cells_.size();
    processes_ = static_cast<int>(std::min<std::size_t>(cells_.size(), static_cast<std::size_t>(processes)));
  }

  void run() {
    if (cells_.empty()) return;
    context_.progress.line(
        fmt::format("Compiling {} cells in {} processes side by side.", cells_.size(), processes_));
    std::vector<std::thread> threads;
    for (int i = 0; i < processes_; ++i) threads.emplace_back([this, i] { work(i); });
    for (std::thread& thread : threads) thread.join();
    interruption::throw_if_requested();
  }

 private:
  // A thread keeps its workers until it ends: a worker dies with the thread that started it.
  void work(int index) {
    std::map<std::string, std::shared_ptr<WorkerClient>> clients;  // of each worker that had a cell
    while (const std::optional<Cell> cell = next()) {
      const std::string name = cell_name(cell->shared->workload->name, cell->row->name, cell->precision);
      std::shared_ptr<WorkerClient>& client = clients[cell->row->worker];
      try {
        if (client == nullptr)
          client = context_.pool.start_aside(
              *cell->row, fmt::format("compiler-{}-{}", index, cell->row->worker), environment());
        const Prepared prepared = compile(*client, *cell);
        tell(fmt::format("{}: {} in {:.1f} s", name,
                         prepared.setup_cache == SetupCache::kWarm ? "found compiled" : "compiled",
                         prepared.setup_seconds));
      } catch (const std::exception& error) {
        client.reset();
        tell(fmt::format("{}: {}", name, one_line(error.what(), 200)));
      }
      done_with(*cell->shared);
    }
  }

  /// Without a device only code of our own kernels can be made.
  bool can_compile(const BackendRow& row, Precision precision, int devices) const {
    const Availability availability = context_.pool.availability(row, precision, devices);
    return availability.state == Availability::State::kAvailable ||
           (!context_.has_device && availability.state == Availability::State::kSkipped &&
            row.family == Family::kOurs);
  }

  Prepared compile(WorkerClient& client, const Cell& cell) {
    if (!context_.has_device && cell.row->family == Family::kOurs)
      return client.compile(cell.row->name, *cell.shared->workload, cell.precision, context_.cache_folder,
                            kUsualTarget);
    const TrainingFiles& files = files_of(*cell.shared);
    const Prepared prepared = client.prepare(cell.row->name, files.workload, cell.precision, files.data,
                                             files.parameters, context_.cache_folder);
    client.release();
    return prepared;
  }

  /// What makes the workers share the cores (torch_impl/python/headroom_worker/compilation.py). Each has some compilers to
  /// spare: at any time many workers wait for the device, and at the end few are left.
  std::map<std::string, std::string> environment() const {
    constexpr int kSpare = 4;
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    return {{"HEADROOM_COMPILERS", std::to_string(std::clamp(kSpare * cores / processes_, 1, cores))}};
  }

  std::optional<Cell> next() {
    const std::lock_guard lock(mutex_);
    if (cells_.empty() || interruption::requested()) return std::nullopt;
    const Cell cell = cells_.front();
    cells_.pop_front();
    return cell;
  }

  const TrainingFiles& files_of(SharedFiles& shared) {
    const std::lock_guard lock(files_mutex_);
    if (!shared.files) shared.files.emplace(context_, *shared.workload);
    return shared.files->own();
  }
  void done_with(SharedFiles& shared) {
    const std::lock_guard lock(files_mutex_);
    if (--shared.cells_left == 0) shared.files.reset();
  }

  void tell(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (!interruption::requested()) context_.progress.line(fmt::format("[{} left] {}", --cells_left_, text));
  }

  const RunContext& context_;
  std::deque<SharedFiles> shared_;
  std::mutex mutex_, files_mutex_;
  std::deque<Cell> cells_;  // those that no thread has taken
  std::size_t cells_left_ = 0;
  int processes_ = 0;
};

}  // namespace

void compile_ahead(const RunContext& context, int processes) { AheadOfTime(context, processes).run(); }

}  // namespace headroom
