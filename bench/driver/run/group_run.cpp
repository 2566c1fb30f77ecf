#include "driver/run/group_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <new>
#include <thread>
#include <utility>

#include "analysis/gpu_state.h"
#include "analysis/statistics.h"
#include "analysis/verification.h"
#include "core/error.h"
#include "core/parallel.h"
#include "driver/gpu/energy.h"
#include "driver/run/loss_runs.h"
#include "driver/system/interruption.h"

namespace headroom {
namespace {

// A loss above this many times the oracle's largest is no longer the same training.
constexpr double kLossRange = 10;
// Idle power is measured for this part of an energy stretch.
constexpr double kIdleFraction = 0.5;

std::string shown_precisions(const std::vector<Precision>& precisions) {
  std::string text;
  for (const Precision precision : precisions)
    text += (text.empty() ? "" : ", ") + std::string(to_string(precision));
  return text;
}

void append_message(Record& record, const std::string& text) {
  if (!text.empty()) record.message += (record.message.empty() ? "" : "; ") + text;
}

}  // namespace

std::vector<GpuMonitor*> RunContext::monitors_of(const Workload& workload) const {
  if (std::ssize(monitors) < workload.devices) return {};
  const std::vector<GpuMonitor*> own(monitors.begin(), monitors.begin() + workload.devices);
  return std::find(own.begin(), own.end(), nullptr) == own.end() ? own : std::vector<GpuMonitor*>{};
}

WorkloadFiles::WorkloadFiles(const RunContext& context, const Workload& workload)
    : context_(context), folder_(MadeFolder::numbered(context.folder)) {
  // The CPU oracle reads the training samples from memory.
  const bool keep = !(context.gpu_oracle != nullptr && wants_gpu_oracle(workload));
  own_ = write_training_files(workload, context.least_train_bytes, folder() / "own", keep);
}

const TrainingFiles& WorkloadFiles::with_seed(std::uint64_t seed) {
  if (seed == own_.workload.seed) return own_;
  const auto found = others_.find(seed);
  if (found != others_.end()) return found->second;
  Workload workload = own_.workload;
  workload.seed = seed;
  return others_
      .emplace(seed, write_training_files(workload, context_.least_train_bytes,
                                          folder() / fmt::format("seed-{}", seed), false))
      .first->second;
}

GroupRun::GroupRun(const RunContext& context, const Workload& workload, const Group& group, std::string title)
    : context_(context), workload_(workload), precision_(group.precision), title_(std::move(title)) {
  for (const std::string& backend : group.backends) {
    Cell& cell = cells_.emplace_back();
    cell.row = row_of(context.table, backend);
    cell.record.workload = workload.name;
    cell.record.backend = backend;
    cell.record.family = cell.row.family;
    cell.record.precision = precision_;
    const Availability availability = context.pool.availability(cell.row, precision_, workload.devices);
    cell.record.contract = availability.contract;
    const auto& limited = context.plan.precisions_without_gpu;
    if (availability.state == Availability::State::kSkipped) {
      cell.record.outcome = Outcome::kSkipped;
      cell.record.message = availability.reason;
    } else if (availability.state == Availability::State::kFailed) {
      fail(cell, availability.reason);
    } else if (!context.has_device && limited &&
               std::find(limited->begin(), limited->end(), precision_) == limited->end()) {
      cell.record.outcome = Outcome::kSkipped;
      cell.record.message = fmt::format("no CUDA device: suite {} then runs {} only",
                                        context.plan.suite.value_or(""), shown_precisions(*limited));
    }
  }
}

bool GroupRun::any_left() const {
  return std::any_of(cells_.begin(), cells_.end(), [](const Cell& cell) { return cell.left(); });
}

void GroupRun::status(const std::string& backend, const std::string& what, bool important) const {
  context_.progress.status(fmt::format("{}{}{}: {}", title_, backend.empty() ? "" : " ", backend, what),
                           important);
}

void GroupRun::fail(Cell& cell, const std::string& message) { mark_failed(cell.record, one_line(message)); }

void GroupRun::fail_all(const std::string& message) {
  for (Cell& cell : cells_) {
    if (cell.left()) fail(cell, message);
  }
}

// Whatever goes wrong with one backend ends here, in its record; Ctrl-C goes on upwards.
void GroupRun::attempt(Cell& cell, const std::string& what, const std::function<void()>& work) {
  interruption::throw_if_requested();
  try {
    work();
    return;
  } catch (const WorkerCallError& error) {
    interruption::throw_if_requested();
    if (error.kind() == WorkerCallError::Kind::kUnsupported && !cell.record.setup_seconds) {
      cell.record.outcome = Outcome::kSkipped;
      cell.record.message = one_line(error.what());
      return;
    }
    fail(cell, fmt::format("{}: {}", what, error.what()));
  } catch (const WorkerLostError& error) {
    interruption::throw_if_requested();
    fail(cell, fmt::format("{}: {}", what, error.what()));
  } catch (const std::bad_alloc&) {
    fail(cell, fmt::format("{}: the driver ran out of memory", what));
  } catch (const std::exception& error) {
    interruption::throw_if_requested();
    fail(cell, fmt::format("{}: {}", what, error.what()));
  }
  // A worker that failed a call may hold a broken CUDA context: the next backend's work starts in a fresh
  // one.
  context_.pool.end(cell.row.name);
  cell.client = nullptr;
}

void GroupRun::make_reference(WorkloadFiles& files) {
  folder_ = files.folder() / std::string(to_string(precision_));
  std::filesystem::create_directories(folder_);
  status("", "following the oracle", true);
  // The next precision writes over this one's points: new files would have to find their pages anew.
  const std::filesystem::path points = files.folder() / "reference";
  std::vector<Contract> contracts;
  for (const Cell& cell : cells_)
    if (cell.left() && std::find(contracts.begin(), contracts.end(), cell.record.contract) == contracts.end())
      contracts.push_back(cell.record.contract);
  const BackendRow* gpu_oracle = context_.gpu_oracle;
  if (gpu_oracle != nullptr && wants_gpu_oracle(workload_)) {
    try {
      reference_ = gpu_reference(context_.pool.client(*gpu_oracle), gpu_oracle->name, files.own(), precision_,
                                 contracts, points);
    } catch (...) {
      context_.pool.end(gpu_oracle->name);
      throw;
    }
  } else {
    reference_ = cpu_reference(files.own(), precision_, contracts, points);
  }
}

Prepared GroupRun::prepare(WorkerClient& client, const std::string& backend, const TrainingFiles& files) {
  try {
    return client.prepare(backend, files.workload, precision_, files.data, files.parameters,
                          context_.cache_folder);
  } catch (const WorkerTimeoutError& error) {
    throw WorkerLostError(fmt::format("it takes longer than --setup-limit, {} s: {}",
                                      context_.options.setup_limit_seconds, error.what()));
  }
}

void GroupRun::prepare_and_check(WorkloadFiles& files) {
  const TrainingFiles& own = files.own();
  for (Cell& cell : cells_) {
    if (!cell.left()) continue;
    attempt(cell, "setting up", [&] {
      status(cell.row.name, "setting up", true);
      cell.client = &context_.pool.client(cell.row);
      const Prepared prepared = prepare(*cell.client, cell.row.name, own);
      cell.record.setup_seconds = prepared.setup_seconds;
      cell.record.setup_cache = prepared.setup_cache;
      cell.record.message = one_line(prepared.note);
      cell.choice = prepared.choice;
    });
  }
  check(files);
  reference_.reset();
}

// Once all are set up: what some set up by timing it is to have the device to itself.
void GroupRun::check(WorkloadFiles& files) {
  std::vector<Cell*> waiting;
  std::vector<std::packaged_task<Verification(const std::filesystem::path&)>> tasks;
  std::vector<std::future<Verification>> checks;
  for (Cell& cell : cells_) {
    if (!cell.left()) continue;
    waiting.push_back(&cell);
    tasks.emplace_back(
        [this, &files, client = cell.client, contract = cell.record.contract](const auto& trained_file) {
          return check_trainer(*client, files.own(), *reference_, contract, precision_, trained_file,
                               [] { interruption::throw_if_requested(); });
        });
    checks.push_back(tasks.back().get_future());
  }
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < checks_side_by_side(workload_); ++i) {
    threads.emplace_back([&, trained_file = files.folder() / fmt::format("trained-{}.f32", i)] {
      for (std::size_t task; (task = next++) < tasks.size();) tasks[task](trained_file);
    });
  }
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    Cell& cell = *waiting[i];
    attempt(cell, "checking", [&] {
      status(cell.row.name, "checking against the oracle", i == 0);
      cell.largest_loss = reference_->largest_loss;
      cell.record.verification = checks[i].get();
      if (cell.record.verification.verdict == Verdict::kCannotBeChecked) {
        append_message(cell.record, "cannot be checked: " + failure_message(cell.record.verification));
      } else if (cell.record.verification.verdict != Verdict::kPass) {
        // Not timed: how fast something else was trained means nothing.
        fail(cell, "verification: " + failure_message(cell.record.verification));
        cell.client->release();
        cell.client = nullptr;
      }
    });
  }
}

void GroupRun::time_blocks() {
  std::vector<TimedTrainer> trainers;
  std::vector<Cell*> timed;
  for (Cell& cell : cells_) {
    if (!cell.left()) continue;
    TimedTrainer trainer;
    trainer.name = cell_name(workload_.name, cell.row.name, precision_);
    trainer.client = cell.client;
    attempt(cell, "timing", [&] {
      status(cell.row.name, "choosing the length of a block");
      choose_block(trainer, context_.options.block_seconds);
    });
    if (!cell.left()) continue;
    trainers.push_back(trainer);
    timed.push_back(&cell);
  }
  const std::int64_t all_blocks = context_.options.blocks * static_cast<std::int64_t>(trainers.size());
  bool first = true;
  measure_interleaved(
      trainers, context_.options.blocks,
      [&](const TimedTrainer& trainer, std::int64_t order) {
        const std::string backend = timed[static_cast<std::size_t>(&trainer - trainers.data())]->row.name;
        status(first ? "" : backend,
               first ? fmt::format("timing {} blocks", all_blocks)
                     : fmt::format("block {} of {}", order + 1, all_blocks),
               first);
        first = false;
      },
      context_.monitors_of(workload_));
  for (std::size_t i = 0; i < trainers.size(); ++i) {
    Cell& cell = *timed[i];
    cell.record.blocks = trainers[i].blocks;
    cell.record.slowdown_reasons = slowdown_reasons(cell.record.blocks);
    cell.next_step = trainers[i].next_step;
    attempt(cell, "timing", [&] {
      if (!trainers[i].failure.empty()) throw std::runtime_error(trainers[i].failure);
      check_timed_losses(cell, trainers[i]);
      cell.record.step_seconds = median_interval(step_samples(cell.record.blocks));
      cell.record.wall_step_seconds = median(step_samples(cell.record.blocks, &Block::wall_seconds));
      cell.record.cpu_step_seconds = median(step_samples(cell.record.blocks, &Block::cpu_seconds));
      append_message(cell.record, slowdown_message(cell.record.blocks));
    });
  }
}

void GroupRun::measure_energies() {
  const double seconds = context_.options.energy_seconds;
  std::vector<const Nvml*> devices;
  for (const GpuMonitor* monitor : context_.monitors_of(workload_)) devices.push_back(&monitor->nvml());
  if (devices.empty() || seconds <= 0 || !any_left()) return;
  status("", "measuring idle power", true);
  const std::optional<double> idle_watts = measure_idle_watts(devices, kIdleFraction * seconds);
  for (Cell& cell : cells_) {
    if (!cell.left() || !cell.row.on_device) continue;
    attempt(cell, "measuring energy", [&] {
      status(cell.row.name, "measuring energy");
      const auto train = [&](std::int64_t steps) {
        const Timing timing = cell.client->train(cell.next_step, steps);
        cell.next_step += steps;
        return timing.wall_seconds;
      };
      cell.record.energy =
          measure_energy(train, cell.record.wall_step_seconds.value(), seconds, devices, idle_watts);
      if (const auto& energy = cell.record.energy)
        cell.record.joules_per_step = energy->joules / static_cast<double>(energy->steps);
    });
  }
}

// The steps that were timed must have trained: their losses are there, finite and of the run's size.
void GroupRun::check_timed_losses(Cell& cell, const TimedTrainer& trainer) {
  const std::int64_t first = std::max(std::int64_t{0}, trainer.next_step - Trainer::kKeptLosses);
  const std::vector<float> losses =
      cell.client->losses(first, trainer.next_step - first, folder_ / "losses.f32");
  Verification& verification = cell.record.verification;
  std::vector<Check> checks = verification.checks;
  checks.push_back(losses_finite_check(losses, kLossRange * cell.largest_loss));
  checks.back().steps = {first, trainer.next_step - 1};
  const std::optional<int> copies = verification.copies;
  verification = judge(std::move(checks));
  verification.copies = copies;
  if (verification.verdict == Verdict::kFail) {
    fail(cell, "verification: " + failure_message(cell.record.verification));
  }
}

// All at the same time: a Python worker takes a second to give everything back.
void GroupRun::release() {
  std::vector<std::pair<Cell*, std::future<std::optional<std::int64_t>>>> released;
  for (Cell& cell : cells_) {
    WorkerClient* client = std::exchange(cell.client, nullptr);
    if (client == nullptr) continue;
    released.emplace_back(&cell, std::async(std::launch::async, [client] { return client->release(); }));
  }
  for (auto& [cell, bytes] : released)
    attempt(*cell, "releasing", [&] { cell->record.peak_device_bytes = bytes.get(); });
}

void GroupRun::train_losses(WorkloadFiles& files, const std::vector<LossCurve>& eager) {
  const std::int64_t steps = context_.plan.loss_steps;
  if (steps == 0) return;
  for (const std::uint64_t seed : context_.plan.loss_seeds) {
    for (Cell& cell : cells_) {
      if (!cell.left()) continue;
      attempt(cell, fmt::format("losses with seed {}", seed), [&] {
        const TrainingFiles& seeded = files.with_seed(seed);
        cell.record.losses.push_back(
            train_curve(context_.pool.client(cell.row), cell.row.name, precision_, seeded, steps,
                        context_.cache_folder, folder_, [&](std::int64_t step) {
                          interruption::throw_if_requested();
                          status(cell.row.name,
                                 fmt::format("losses, seed {}, step {} of {}", seed, step, steps), step == 0);
                        }));
      });
    }
  }
  // In fp32 pytorch-eager is in this group itself.
  std::vector<LossCurve> reference = eager;
  for (const Cell& cell : cells_) {
    if (cell.left() && precision_ == Precision::kFp32 && cell.row.name == "pytorch-eager")
      reference = cell.record.losses;
  }
  for (Cell& cell : cells_) {
    if (!cell.left()) continue;
    const auto check = compare_curves(cell.record.losses, reference);
    if (!check) continue;
    // A curve that differs is reported, it does not undo the step checks: a few seeds can drift apart.
    cell.record.verification.checks.push_back(*check);
    if (!check->passed) {
      append_message(
          cell.record,
          fmt::format("last losses differ from pytorch-eager's in fp32 by {:.2f} % (more than {:.1f} %)",
                      100 * check->error, 100 * check->bound));
    }
  }
}

std::map<std::string, Choice> GroupRun::choices() const {
  std::map<std::string, Choice> choices;
  for (const Cell& cell : cells_)
    if (cell.choice) choices[cell.row.name] = *cell.choice;
  return choices;
}

std::vector<Record> GroupRun::records() const {
  std::vector<Record> records;
  for (const Cell& cell : cells_) records.push_back(cell.record);
  return records;
}

}  // namespace headroom
