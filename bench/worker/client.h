// The driver's end of the worker protocol (PROTOCOL.md): one child process behind a typed interface.
//
// A worker leads a process group of its own: a Ctrl-C at the terminal reaches the driver alone, which then
// ends its workers, and ending a worker also ends what it has started.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/record.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "worker/float_file.h"
#include "worker/messages.h"

namespace headroom {

/// The worker answered that a call failed; the worker goes on.
class WorkerCallError : public std::runtime_error {
 public:
  using Kind = CallErrorKind;
  WorkerCallError(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

/// The worker died, hung past its time limit, or wrote something that is not an answer. It has been ended.
/// The message is one line: the worker's name, what happened, and the last lines of its log.
class WorkerLostError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A worker that speaks another version of the protocol.
class WorkerProtocolError : public WorkerLostError {
 public:
  using WorkerLostError::WorkerLostError;
};

/// A worker that hung past its time limit.
class WorkerTimeoutError : public WorkerLostError {
 public:
  using WorkerLostError::WorkerLostError;
};

/// A worker that died with a signal: somebody, or the system, has killed it, or it crashed.
class WorkerKilledError : public WorkerLostError {
 public:
  using WorkerLostError::WorkerLostError;
};

struct WorkerCommand {
  std::string name;                                ///< for messages: "cuda", "libtorch", "python"
  std::vector<std::string> arguments;              ///< program first; `--device N` is appended
  std::map<std::string, std::string> environment;  ///< added to this process's environment
  /// The worker's standard error is appended to it; empty: this process's standard error.
  std::filesystem::path log_file;
};

struct TimeLimits {
  std::chrono::milliseconds hello{120'000}, prepare{600'000}, train{600'000}, reference{600'000},
      other{300'000},
      goodbye{5'000};  ///< to end by itself, once its input has; one that holds a CUDA context takes a second
};

class WorkerClient {
 public:
  /// Starts the process. Throws WorkerLostError if it cannot be started. `peers`: the CUDA devices that it may use beside
  /// `device`; prepare() names the first of them for a workload of several devices.
  /// The worker also ends when the calling thread does (PR_SET_PDEATHSIG), so start workers from a lasting
  /// thread.
  WorkerClient(WorkerCommand command, int device, TimeLimits limits = {}, std::vector<int> peers = {});
  ~WorkerClient();  ///< closes its input, waits a moment, then kills it and its children
  WorkerClient(const WorkerClient&) = delete;
  WorkerClient& operator=(const WorkerClient&) = delete;

  /// Every call throws WorkerCallError or WorkerLostError.
  WorkerHello hello();
  /// Waits until the process has loaded and set up what it needs, by a hello whose answer is known already.
  void wait_until_ready() { hello(); }
  Prepared prepare(const std::string& backend, const Workload& workload, Precision precision,
                   const DataFiles& data, const std::filesystem::path& parameters_file,
                   const std::string& cache_folder);
  /// Code for a device that need not be there, into the cache folder. `setup_cache` says whether it was there already.
  Prepared compile(const std::string& backend, const Workload& workload, Precision precision,
                   const std::string& cache_folder, const TargetDevice& target);
  Timing train(std::int64_t first_step, std::int64_t count);
  /// `scratch` is a file that this call may write; it is removed again.
  std::vector<float> losses(std::int64_t first_step, std::int64_t count,
                            const std::filesystem::path& scratch);
  /// Parameters and, behind them, each of the optimizer's slots: flat fp32 files (write_state()).
  void state(const std::filesystem::path& file);
  void set_state(const std::filesystem::path& file);
  ReferenceAnswer reference(const std::vector<std::int64_t>& steps, std::int64_t free_steps,
                            const ReferenceWanted& wanted, const std::filesystem::path& folder);
  /// Rates of the device itself, and of its links to `peers`; only of a worker whose hello says that it calibrates.
  Calibration calibrate(const std::vector<int>& peers = {});
  /// Begins a range for profilers and ends the one before; empty: only ends it. Only of a worker whose hello says that it has
  /// ranges.
  void range(const std::string& name);
  /// Peak device bytes of the released trainer, if known.
  std::optional<std::int64_t> release();

  bool alive() const;
  const WorkerCommand& command() const { return command_; }
  /// Sends SIGKILL; safe to call from another thread.
  void kill();

 private:
  class Process;
  template <typename Answer>
  Answer call(Call request, std::chrono::milliseconds limit);
  template <typename Error = WorkerLostError>
  [[noreturn]] void lose(const std::string& what);

  WorkerCommand command_;
  int device_;
  TimeLimits limits_;
  std::vector<int> peers_;
  std::unique_ptr<Process> process_;
  std::int64_t next_id_ = 1;
};

}  // namespace headroom
