// The worker is a child of this program, which is a child of the profiler: both profilers follow children. They write what they
// have seen when the worker ends, so it is never killed for being slow about it.
#include "driver/run/profile.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>

#include "analysis/verification.h"
#include "core/error.h"
#include "driver/plan/plan.h"
#include "driver/run/capacity.h"
#include "driver/run/device_use.h"
#include "driver/run/offers.h"
#include "driver/run/outlook.h"
#include "driver/run/progress.h"
#include "driver/run/run.h"
#include "driver/run/training_files.h"
#include "driver/run/verify.h"
#include "driver/run/worker_pool.h"
#include "driver/system/command_name.h"
#include "driver/system/interruption.h"
#include "driver/system/scratch.h"
#include "driver/system/units.h"

namespace headroom {
namespace {

// Of the block: with every section collected a kernel runs some forty times.
constexpr int kWatchedKernels = 20;

// As a shell reads it.
std::string quoted(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./=:,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

TimeLimits limits_of(const RunOptions& options) {
  TimeLimits limits;
  limits.train = limits.reference = limits.other = limits.prepare = limits.goodbye =
      std::chrono::seconds(options.time_limit_seconds);
  limits.hello = std::min(limits.hello, limits.other);
  return limits;
}

/// The worker that is to train, or the reason why nothing of it can be seen.
const WorkerHello& require_on_device(const WorkerPool& pool, const BackendRow& row,
                                     const RunOptions& options) {
  if (!pool.device())
    throw InputError(fmt::format(
        "profile: no CUDA device {} was found, and a profiler of GPUs sees nothing else", options.device));
  const Availability found = pool.availability(row, options.precisions.front());
  if (found.state == Availability::State::kSkipped)
    throw InputError(fmt::format("profile: {}", found.reason));
  if (found.state == Availability::State::kFailed) throw std::runtime_error(found.reason);
  const WorkerHello& hello = *pool.greeting(row.worker).hello;
  if (!hello.device)
    throw InputError(
        fmt::format("profile: {} does not run on the GPU, and the profilers see nothing else", row.name));
  return hello;
}

Reference follow_oracle(const TrainingFiles& files, const RunOptions& options, Contract contract,
                        const BackendRow* gpu_oracle, WorkerPool& pool, const std::filesystem::path& folder) {
  const Precision precision = options.precisions.front();
  if (gpu_oracle == nullptr) return cpu_reference(files, precision, {contract}, folder);
  Reference reference =
      gpu_reference(pool.client(*gpu_oracle), gpu_oracle->name, files, precision, {contract}, folder);
  pool.end(gpu_oracle->name);  // its work is done, and it is not the one to be seen
  return reference;
}

}  // namespace

std::string profiler_lines(const std::vector<std::string>& command, bool ranges) {
  std::string words;
  for (const std::string& word : command) words += " " + quoted(word);
  const std::string nsys = fmt::format("nsys profile --trace=cuda,nvtx --cuda-graph-trace=node{}", words);
  // Without ranges the first kernels, of the set-up, are all that could be asked for.
  const std::string ncu = fmt::format(
      "ncu --target-processes all{} --set full{}",
      ranges ? fmt::format(" --nvtx --nvtx-include block --launch-count {}", kWatchedKernels) : "", words);
  return fmt::format(
      "The timeline, with Nsight Systems:\n  {}\nThe {}, with Nsight Compute:\n  {}\n", nsys,
      ranges ? fmt::format("first {} kernels of the block", kWatchedKernels) : "kernels, all of them", ncu);
}

std::string profile_text(const ProfileOptions& asked) {
  RunOptions options = asked.trained;
  options.device_given = false;  // what is said where there is none is said below
  const Installation installation = find_installation();
  Progress progress;
  const Scratch logs(0);
  const std::vector<WorkerProgram> programs = worker_programs(installation, options.workers);
  const int device = choose_device(options);
  const std::vector<int> peers = peer_devices(options, device);
  WorkerPool pool(programs, device, limits_of(options), logs.folder(), peers);
  greet_named_workers(options, pool);
  std::vector<BackendRow> table;
  const Plan plan =
      make_plan(options, installation, [&](const std::vector<std::string>& names) -> const auto& {
        progress.status("asking the workers what they offer");
        greet_quick_workers(programs, pool);
        return table = find_backends(programs, pool, names);
      });
  const Workload& workload = plan.workloads.front().workload;
  const BackendRow& row = row_of(table, options.backends.front());
  const Precision precision = options.precisions.front();
  const WorkerHello hello = require_on_device(pool, row, options);
  const Contract contract = pool.availability(row, precision, workload.devices).contract;
  const BackendRow* gpu_oracle = wants_gpu_oracle(workload) ? reference_on_device(table, pool) : nullptr;
  std::set<std::string> needed = {row.worker};
  if (gpu_oracle != nullptr) needed.insert(gpu_oracle->worker);
  pool.keep_only(needed);
  std::vector<DeviceInfo> devices;
  if (hello.device) devices.push_back(*hello.device);
  const std::vector<int> used = planned_peers(options, plan, peers, progress);
  pool.use_peers(used);
  for (const int peer : used)
    if (const auto info = pool.device(peer)) devices.push_back(*info);
  const std::vector<DeviceLock> locks = lock_devices(options, devices, progress);
  refuse_too_large(workload, need_of(workload, least_train_bytes(hello.device), gpu_oracle != nullptr, 0),
                   room_here());

  const Scratch scratch(temporary_bytes(plan));
  progress.status("making the data set", true);
  const TrainingFiles files = write_training_files(workload, least_train_bytes(hello.device),
                                                   scratch.folder() / "own", gpu_oracle == nullptr);
  progress.status("following the oracle", true);
  const Reference reference =
      follow_oracle(files, options, contract, gpu_oracle, pool, scratch.folder() / "reference");

  WorkerClient& client = pool.client(row);
  const auto begin = [&](const std::string& range) {
    interruption::throw_if_requested();
    if (!range.empty()) progress.status(fmt::format("{}: {}", row.name, range), true);
    if (hello.ranges) client.range(range);
  };
  begin("set-up");
  try {
    client.prepare(row.name, workload, precision, files.data, files.parameters, choose_cache_folder(options));
  } catch (const WorkerCallError& error) {
    if (error.kind() == CallErrorKind::kUnsupported)
      throw InputError(
          fmt::format("profile: {} does not train {}: {}", row.name, workload.name, error.what()));
    throw;
  }
  begin("check");
  const Verification verification =
      check_trainer(client, files, reference, contract, precision, scratch.folder() / "trained.f32",
                    [] { interruption::throw_if_requested(); });
  if (verification.verdict == Verdict::kFail)
    throw std::runtime_error(fmt::format("{}: verification: {}", row.name, failure_message(verification)));
  // What is made for a number of steps is made here.
  begin("warm-up");
  client.train(0, asked.steps);
  begin("block");
  const Timing timing = client.train(asked.steps, asked.steps);
  begin("");
  client.release();
  progress.status("waiting for the worker to end", true);
  pool.end_all();
  progress.clear();

  std::vector<std::string> command = options.argv;
  command.front() = command_name();
  return fmt::format(
      "{} on {}: {}. A block of {} step{} took {}, {} a step.\n{}\n\n{}",
      cell_name(workload.name, row.name, precision), hello.device->name,
      verification.verdict == Verdict::kPass ? "verified" : "cannot be checked", asked.steps,
      asked.steps == 1 ? "" : "s", step_text(timing.device_seconds),
      step_text(timing.device_seconds / static_cast<double>(asked.steps)),
      hello.ranges
          ? "Its process has the ranges set-up, check, warm-up and block."
          : fmt::format("Worker {} has no ranges; the block is the last that its process does.", row.worker),
      profiler_lines(command, hello.ranges));
}

}  // namespace headroom
