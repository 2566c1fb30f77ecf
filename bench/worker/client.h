// The driver's end of the worker protocol (PROTOCOL.md): one child process behind a typed interface.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/record.h"
#include "core/trainer.h"
#include "core/workload.h"

namespace headroom {

/// The worker answered that a call failed; the worker goes on.
class WorkerCallError : public std::runtime_error {
 public:
  enum class Kind { kUnsupported, kOutOfMemory, kInput, kFailed };
  WorkerCallError(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

/// The worker died, hung past its time limit, or wrote something that is not an answer. It has been ended.
class WorkerLostError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct WorkerCommand {
  std::string name;                          ///< for messages: "cuda", "libtorch", "python"
  std::vector<std::string> arguments;        ///< program first; `--device N` is appended
  std::map<std::string, std::string> environment;  ///< added to this process's environment
  std::filesystem::path log_file;            ///< the worker's standard error; its last lines go into messages
};

struct OfferedPrecision {
  Contract contract = Contract::kExact;
  std::optional<std::string> unavailable;
};
struct OfferedBackend {
  std::string name;
  std::map<Precision, OfferedPrecision> precisions;
};
struct WorkerHello {
  std::string worker;
  std::map<std::string, std::string> software;
  std::optional<DeviceInfo> device;
  std::vector<OfferedBackend> backends;
};

/// Files that hold one data set, as prepare() wants them.
struct DataFiles {
  std::filesystem::path features, labels;
  std::int64_t samples = 0;
  int feature_count = 0;
};

struct Prepared {
  double setup_seconds = 0;
  std::string note;
};

struct TimeLimits {
  std::chrono::seconds hello{120}, prepare{600}, train{600}, other{300};
};

class WorkerClient {
 public:
  /// Starts the process. Throws WorkerLostError if it cannot be started.
  WorkerClient(WorkerCommand command, int device, TimeLimits limits = {});
  ~WorkerClient();  ///< closes its input, waits a moment, then kills it and its children
  WorkerClient(const WorkerClient&) = delete;
  WorkerClient& operator=(const WorkerClient&) = delete;

  /// Every call throws WorkerCallError or WorkerLostError.
  WorkerHello hello();
  Prepared prepare(const std::string& backend, const Workload& workload, Precision precision,
                   const DataFiles& data, const std::filesystem::path& parameters_file,
                   const std::string& cache_folder);
  Timing train(std::int64_t first_step, std::int64_t count);
  std::vector<float> losses(std::int64_t first_step, std::int64_t count, const std::filesystem::path& scratch);
  void parameters(const std::filesystem::path& file);
  void set_parameters(const std::filesystem::path& file);
  std::vector<double> reference(const std::vector<std::int64_t>& steps, std::int64_t free_steps,
                                const std::filesystem::path& folder);
  /// Peak device bytes of the released trainer, if known.
  std::optional<std::int64_t> release();

  bool alive() const;
  const WorkerCommand& command() const { return command_; }
  /// Sends SIGKILL; safe to call from another thread.
  void kill();

 private:
  struct Process;
  WorkerCommand command_;
  TimeLimits limits_;
  std::unique_ptr<Process> process_;
};

/// Writes and reads flat fp32 files (parameters, losses). Throw std::runtime_error that names the file.
void write_floats(const std::filesystem::path& file, std::span<const float> values);
std::vector<float> read_floats(const std::filesystem::path& file, std::int64_t count);

}  // namespace headroom
