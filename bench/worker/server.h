// The worker's end of the protocol (PROTOCOL.md): a table of backends in, a process that serves them out.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/dataset_view.h"
#include "core/record.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "oracle/oracle.h"
#include "worker/messages.h"

namespace headroom {

/// What a backend is given to make a trainer. `data` and `initial` outlive the trainer.
struct TrainerRequest {
  const Workload& workload;
  Precision precision;
  DatasetView data;
  const Parameters& initial;
  int device;                ///< CUDA device index, -1 for none
  std::string cache_folder;  ///< where compiled code may be kept; empty for nowhere
  /// CUDA device of each rank, `device` first, where the workload has several devices; empty without a CUDA device.
  std::vector<int> devices = {};
};

/// What a backend is given to compile code for a device that need not be there.
struct CompileRequest {
  const Workload& workload;
  Precision precision;
  TargetDevice target;
  std::string cache_folder;
};

struct BackendPrecision {
  Precision precision;
  Contract contract = Contract::kExact;
  /// Why this machine cannot run it; nullopt if it can.
  std::optional<std::string> unavailable;
};

/// Follows a reference from `initial` and hands out its points at `steps`, in order and for each contract that is wanted, and the
/// parameters after `free_steps` steps (0: not asked for). Returns how far copies are apart after them, as follow_reference() does;
/// see `reference` in PROTOCOL.md.
using ReferenceFunction = std::function<std::vector<double>(
    const TrainerRequest&, const std::vector<std::int64_t>& steps, std::int64_t free_steps,
    const ReferenceWanted& wanted, const std::function<void(const ReferencePoint&)>& point,
    const std::function<void(const Parameters&)>& after_free_steps)>;

/// One row of a worker's table.
struct Backend {
  std::string name;
  std::vector<BackendPrecision> precisions;
  /// Throws UnsupportedError if the workload does not fit, OutOfMemoryError, or any other exception for a
  /// failure. Null for a backend that only answers `reference`.
  std::function<std::unique_ptr<Trainer>(const TrainerRequest&)> make_trainer;
  ReferenceFunction reference = nullptr;  ///< of a reference; else null
  /// Whether it trains every activation, loss and optimizer. The server refuses for the others what is beyond
  /// ReLU, cross-entropy and plain sgd.
  bool trains_everything = false;
  Family family = Family::kOther;
  std::string description = {};  ///< one line
  bool compiles = false;         ///< when it is set up, which may take a minute
  bool repeats = false;          ///< another row's work under its own name: "all" leaves it out
  /// Compiles what make_trainer() would, into the cache folder, and says what. Throws UnsupportedError if there is nothing
  /// for this target. Null for a backend that compiles nothing, or only on the device itself.
  std::function<Prepared(const CompileRequest&)> compile = nullptr;
  /// That it trains one network on. The server refuses workloads of more.
  int max_devices = 1;
};

struct WorkerDescription {
  std::string name;
  std::map<std::string, std::string> software;
  std::optional<DeviceInfo> device;
  std::vector<Backend> backends;
  /// Measures the device itself in seconds, and with two devices or more also the links between them, which are no matter of
  /// one; null if this worker does not.
  std::function<Calibration(const std::vector<int>& devices)> calibrate = nullptr;
  /// For profilers: ends the range that it began before, if any, and begins one of this name, unless that is empty. Null if
  /// this worker has no ranges.
  std::function<void(const std::string& name)> range = nullptr;
  /// All devices that the process sees, `device` among them; empty where no backend trains on several.
  std::vector<DeviceInfo> devices = {};
};

/// Parses `--device N` and serves until standard input ends. `describe(device)` is called once, before
/// anything is read; if it throws, every call is answered with its message. Returns the process's exit code:
/// 2 for wrong arguments. A duplicate backend name throws std::logic_error.
int serve(int argc, char** argv, const std::function<WorkerDescription(int device)>& describe);

}  // namespace headroom
