// The messages of the worker protocol (PROTOCOL.md) as types, and their one-line JSON form.
//
// This is the only place that knows the JSON of the protocol, and the JSON library stays behind it: what is
// read is checked field by field, so both ends handle values that are known to be whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/choice.h"
#include "core/record.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "oracle/oracle.h"

namespace headroom {

inline constexpr int kProtocolVersion = 2;
/// A longer line is not an answer and not a request.
inline constexpr std::size_t kLongestLine = std::size_t{1} << 20;

// What the calls ask and answer.

struct OfferedPrecision {
  Contract contract = Contract::kExact;
  std::optional<std::string> unavailable;
};
/// What a backend is: only its worker says so.
struct OfferedBackend {
  std::string name;
  Family family = Family::kOther;
  std::string description = {};  ///< one line
  bool compiles = false;         ///< when it is set up, which may take a minute
  bool repeats = false;          ///< another row's work under its own name: "all" leaves it out
  bool reference = false;        ///< whether it answers `reference`
  int max_devices = 1;           ///< that it trains one network on
  int min_devices = 1;           ///< likewise
  std::map<Precision, OfferedPrecision> precisions = {};
};
struct WorkerHello {
  std::string worker;
  std::map<std::string, std::string> software;
  std::optional<DeviceInfo> device;
  std::vector<OfferedBackend> backends;
  std::vector<DeviceInfo> devices = {};  ///< all that the process sees, `device` among them; may be empty
  bool calibrates = false;               ///< whether it answers `calibrate`
  bool ranges = false;                   ///< whether it answers `range`
  /// Why nothing that it offers works, though nothing is missing here: its rows fail with this reason.
  std::optional<std::string> broken = {};
};

/// Files that hold one data set, as prepare() wants them.
struct DataFiles {
  std::filesystem::path features;  ///< fp32 [samples, feature_count]
  /// int32 [samples], or fp32 [samples, outputs], as the workload's loss has it.
  std::filesystem::path targets;
  std::int64_t samples = 0;
  int feature_count = 0;
};

struct Prepared {
  double setup_seconds = 0;
  std::string note;
  std::optional<SetupCache> setup_cache = {};
  std::optional<Choice> choice = {};  ///< of a backend that takes one of several
};

/// What code is compiled for where the device itself is not at hand.
struct TargetDevice {
  int compute_major = 0, compute_minor = 0;
  int sm_count = 0;
  int shared_bytes = 0;  ///< that a thread block may have
};

struct HelloCall {
  std::int64_t protocol = kProtocolVersion;
};
struct PrepareCall {
  std::string backend;
  Workload workload;  ///< its data set specification stays behind: `data` says all a worker needs
  Precision precision = Precision::kFp32;
  DataFiles data;
  std::filesystem::path parameters_file;
  std::string cache_folder;  ///< empty for nowhere
  std::vector<int> devices =
      {};  ///< CUDA device of each rank where the workload has several, the worker's own first
};
struct CompileCall {
  std::string backend;
  Workload workload;
  Precision precision = Precision::kFp32;
  std::string cache_folder;
  TargetDevice target;
};
struct TrainCall {
  std::int64_t first_step = 0;
  std::int64_t count = 0;
};
struct LossesCall {
  std::int64_t first_step = 0;
  std::int64_t count = 0;
  std::filesystem::path file;
};
struct StateCall {
  std::filesystem::path file;
};
struct SetStateCall {
  std::filesystem::path file;
};
struct ReferenceCall {
  std::vector<std::int64_t> steps;
  std::int64_t free_steps = 0;
  std::filesystem::path folder;
  ReferenceWanted wanted;
};
struct ReleaseCall {};
struct CalibrateCall {
  std::vector<int> devices = {};  ///< with two or more also the links between them are measured
};
struct RangeCall {
  std::string name;  ///< empty: none begins
};
using Call = std::variant<HelloCall, PrepareCall, TrainCall, LossesCall, StateCall, SetStateCall,
                          ReferenceCall, ReleaseCall, CalibrateCall, CompileCall, RangeCall>;

struct Request {
  std::int64_t id = 0;
  Call call;
};

struct Nothing {};
struct ValueCount {
  std::int64_t count = 0;
};
struct ReferenceAnswer {
  std::vector<double> losses;  ///< of each step
  std::vector<double>
      free_spreads;  ///< of each contract; may be infinite; empty without free steps or copies
};
struct PeakMemory {
  std::optional<std::int64_t> peak_device_bytes;
};
using Result = std::variant<WorkerHello, Prepared, Timing, ValueCount, Nothing, ReferenceAnswer, PeakMemory,
                            Calibration>;

enum class CallErrorKind { kUnsupported, kOutOfMemory, kInput, kFailed };
std::string_view to_string(CallErrorKind kind);  ///< "unsupported", "out_of_memory", "input", "failed"
struct CallError {
  CallErrorKind kind = CallErrorKind::kFailed;
  std::string message;  ///< one line
};

/// A line that is not the message it should be; the text says which field is wrong and what it should be.
class MessageError : public std::runtime_error {
 public:
  explicit MessageError(const std::string& message, std::optional<std::int64_t> id = std::nullopt)
      : std::runtime_error(message), id_(id) {}
  std::optional<std::int64_t> id() const { return id_; }  ///< of the request, if that much could be read

 private:
  std::optional<std::int64_t> id_;
};

/// A hello of another version of the protocol.
class OtherProtocolError : public MessageError {
 public:
  using MessageError::MessageError;
};

// Lines are without their newline, both ways. Reading throws MessageError.

std::string_view name_of(const Call& call);  ///< "train"
std::string write_request(const Request& request);
Request read_request(std::string_view line);

/// Throws MessageError if the result holds a number that is not finite: JSON has none.
std::string write_answer(std::int64_t id, const Result& result);
std::string write_error(std::optional<std::int64_t> id, const CallError& error);
/// The answer to request `id`, which asked for an Answer; an Answer is one of the alternatives of Result.
template <typename Answer>
std::variant<Answer, CallError> read_answer(std::string_view line, std::int64_t id);

/// The text on one line, printable: control characters become spaces, and what is over `longest` bytes is cut off.
std::string one_line(std::string_view text, std::size_t longest = 2000);

}  // namespace headroom
