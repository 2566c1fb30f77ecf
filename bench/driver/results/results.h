// The results file: what it holds in memory, and how it is written and read back. Its contract is
// results/schema.json.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/choice.h"
#include "core/error.h"
#include "core/record.h"
#include "core/workload.h"
#include "driver/system/host.h"

namespace headroom {

/// The version of results/schema.json, which is that of every file that is written.
inline constexpr int kResultsVersion = 2;

/// The user's file that a workload was read off (`run --model`).
struct ModelSource {
  std::string file, name;  ///< base name; the callable or module in it
  std::string sha256;      ///< of the file, 64 hexadecimal digits
  std::string workload;    ///< the name of what was read
};

struct RunInfo {
  std::string id, started_utc;
  std::optional<std::string> finished_utc;
  std::vector<std::string> argv;
  std::optional<std::string> suite, git_sha;
  std::optional<bool> git_dirty;
  std::optional<std::string> source_digest;
  std::map<std::string, std::string> settings;  ///< options as given; what --resume compares
  bool complete = false;
  std::optional<ModelSource> model = {};
};

/// Unknown until the data was built.
struct DatasetInfo {
  std::string description;
  std::optional<std::string> digest;
  std::optional<std::int64_t> samples, held_out_samples, batches;
};

struct WorkloadEntry {
  Workload workload;
  DatasetInfo dataset;
  std::map<Precision, Ladder> ladders = {};  ///< of the precisions that were measured
  std::map<Precision, Floor> floors = {};    ///< empty where nothing is known of the device
  std::string about = {};                    ///< a sentence of the suite's; empty for none
  /// By precision and by the backend that chose; of those that take one of several others.
  std::map<Precision, std::map<std::string, Choice>> choices = {};
};

struct Results {
  int version =
      kResultsVersion;  ///< of the schema, of the file that this was read from; what is written is of the latest
  RunInfo run;
  HostInfo host;
  std::optional<DeviceInfo> device;
  std::vector<DeviceInfo> peer_devices = {};  ///< the others of workloads of several devices
  std::map<std::string, std::string> software;
  Calibration calibration;
  std::vector<WorkloadEntry> workloads;
  std::vector<Record> records;

  /// Null if there is none.
  const Record* find(const std::string& workload, const std::string& backend, Precision precision) const;
  /// What the backend of that record took; null if it does not choose.
  const Choice* find_choice(const std::string& workload, const std::string& backend,
                            Precision precision) const;
  const WorkloadEntry* find_workload(const std::string& name) const;
  WorkloadEntry* find_workload(const std::string& name);
};

/// What was measured on: "NVIDIA H200", or "CPU: model" where no GPU was.
std::string device_name(const Results& results);

/// The file's text. Never NaN or infinity: what is not finite becomes null. Losses have 7 significant digits.
std::string to_json(const Results& results);

/// A file that is no fault of the user's and holds no results for this program: of a version of the schema that it does not
/// know, or the proof of the gate, which lies beside results files.
class OtherFileError : public InputError {
 public:
  using InputError::InputError;
};

/// Throws InputError (`file: records[3].backend: expected a string, found null`), OtherFileError.
Results read_results(const std::filesystem::path& file);
/// The same of a file's JSON, which is read already.
Results results_of(nlohmann::json root, const std::string& file);

}  // namespace headroom
