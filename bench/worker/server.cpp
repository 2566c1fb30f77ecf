#include "worker/server.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <new>
#include <set>
#include <stdexcept>

#include "core/error.h"
#include "core/names.h"
#include "worker/float_file.h"
#include "worker/mapped_file.h"
#include "worker/messages.h"
#include "worker/reference_files.h"

namespace headroom {
namespace {

/// The consecutive steps trained last: those whose losses a trainer's ring of kKeptLosses slots still holds.
class TrainedSteps {
 public:
  void add(std::int64_t first_step, std::int64_t count) {
    if (first_step != end_) begin_ = first_step;
    end_ = first_step + count;
    begin_ = std::max(begin_, end_ - Trainer::kKeptLosses);
  }
  void check(std::int64_t first_step, std::int64_t count) const {
    if (first_step >= begin_ && first_step + count <= end_) return;
    throw InputError("losses of steps " + std::to_string(first_step) + " to " +
                     std::to_string(first_step + count - 1) + " asked for, but " +
                     (begin_ == end_ ? std::string("none were trained")
                                     : "those of steps " + std::to_string(begin_) + " to " +
                                           std::to_string(end_ - 1) + " are kept"));
  }

 private:
  std::int64_t begin_ = 0, end_ = 0;
};

/// A trainer and everything that must outlive it.
struct Preparation {
  const Backend* backend = nullptr;
  Workload workload;
  Precision precision = Precision::kFp32;
  std::unique_ptr<MappedFile<float>> features;
  std::unique_ptr<MappedFile<std::int32_t>> labels;  // with cross-entropy, else targets
  std::unique_ptr<MappedFile<float>> targets;
  DatasetView data;
  Parameters initial;
  std::string cache_folder;
  std::vector<int> devices;
  TrainedSteps trained;
  std::unique_ptr<Trainer> trainer;  // last, so that it goes first

  TrainerRequest request(int device) const {
    return {workload, precision, data, initial, device, cache_folder, devices};
  }
};

void check_names(const WorkerDescription& description) {
  std::set<std::string> names;
  for (const Backend& backend : description.backends) {
    if (!is_name(backend.name)) {
      throw std::logic_error("worker " + description.name + ": backend '" + backend.name + "': expected " +
                             kNameRule);
    }
    if (!names.insert(backend.name).second) {
      throw std::logic_error("worker " + description.name + ": two backends are called " + backend.name);
    }
  }
}

void check_labels(const DatasetView& data, int classes, const std::filesystem::path& file) {
  for (std::int64_t sample = 0; sample < data.samples; ++sample) {
    if (data.labels[sample] < 0 || data.labels[sample] >= classes) {
      throw InputError(file.string() + ": label of sample " + std::to_string(sample) + ": expected 0 to " +
                       std::to_string(classes - 1) + ", found " + std::to_string(data.labels[sample]));
    }
  }
}

class Server {
 public:
  Server(const WorkerDescription& description, int device) : description_(description), device_(device) {}

  Result operator()(const HelloCall& call) const {
    if (call.protocol != kProtocolVersion) {
      throw InputError("asked for version " + std::to_string(call.protocol) +
                       " of the worker protocol, worker " + description_.name + " speaks version " +
                       std::to_string(kProtocolVersion) + "; build both from the same sources");
    }
    WorkerHello hello{
        description_.name, description_.software, description_.device, {}, description_.devices};
    for (const Backend& backend : description_.backends) {
      OfferedBackend& offered = hello.backends.emplace_back();
      offered.name = backend.name;
      offered.family = backend.family;
      offered.description = backend.description;
      offered.compiles = backend.compiles;
      offered.repeats = backend.repeats;
      offered.reference = backend.reference != nullptr;
      offered.max_devices = backend.max_devices;
      for (const BackendPrecision& row : backend.precisions) {
        offered.precisions[row.precision] = {row.contract, row.unavailable};
      }
    }
    hello.calibrates = description_.calibrate != nullptr;
    hello.ranges = description_.range != nullptr;
    return hello;
  }

  Result operator()(const PrepareCall& call) {
    held_.reset();
    auto next = std::make_unique<Preparation>();
    next->backend = &available_backend(call.backend, call.precision);
    validate(call.workload);
    refuse_what_is_not_trained(*next->backend, call.workload);
    next->workload = call.workload;
    next->precision = call.precision;
    next->cache_folder = call.cache_folder;
    check_devices(call);
    next->devices = call.devices;
    if (call.data.feature_count != call.workload.inputs()) {
      throw InputError("data.feature_count: expected the workload's " +
                       std::to_string(call.workload.inputs()) + " inputs, found " +
                       std::to_string(call.data.feature_count));
    }
    if (call.data.samples < call.workload.joined_batch_size()) {
      throw InputError("data.samples: expected a batch of " +
                       std::to_string(call.workload.joined_batch_size()) + " or more, found " +
                       std::to_string(call.data.samples));
    }
    next->features =
        std::make_unique<MappedFile<float>>(call.data.features, call.data.samples * call.data.feature_count);
    next->data = {next->features->data(), nullptr, nullptr, call.data.samples, call.data.feature_count};
    if (call.workload.loss == Loss::kCrossEntropy) {
      next->labels = std::make_unique<MappedFile<std::int32_t>>(call.data.targets, call.data.samples);
      next->data.labels = next->labels->data();
      check_labels(next->data, call.workload.classes(), call.data.targets);
    } else {
      next->targets =
          std::make_unique<MappedFile<float>>(call.data.targets, call.data.samples * call.workload.outputs());
      next->data.targets = next->targets->data();
    }
    next->initial = read_parameters(call.workload, call.parameters_file);

    Prepared prepared;
    if (next->backend->make_trainer) {
      const auto start = std::chrono::steady_clock::now();
      next->trainer = next->backend->make_trainer(next->request(device_));
      prepared.setup_seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      prepared.note = next->trainer->note();
      prepared.setup_cache = next->trainer->setup_cache();
      prepared.choice = next->trainer->choice();
    }
    held_ = std::move(next);
    return prepared;
  }

  Result operator()(const TrainCall& call) {
    Trainer& network = trainer();
    const Timing timing = network.train(call.first_step, call.count);
    held_->trained.add(call.first_step, call.count);
    for (const double seconds : {timing.device_seconds, timing.wall_seconds, timing.cpu_seconds}) {
      if (!(seconds >= 0) || !std::isfinite(seconds)) {
        throw std::runtime_error("the trainer reported a time of " + std::to_string(seconds) + " s");
      }
    }
    return timing;
  }

  Result operator()(const LossesCall& call) {
    Trainer& network = trainer();
    held_->trained.check(call.first_step, call.count);
    const std::vector<float> losses = network.losses(call.first_step, call.count);
    write_floats(call.file, losses);
    return ValueCount{static_cast<std::int64_t>(losses.size())};
  }

  Result operator()(const StateCall& call) {
    const State state = trainer().state();
    write_state(call.file, state);
    return ValueCount{value_count(state)};
  }

  Result operator()(const SetStateCall& call) {
    Trainer& network = trainer();
    State state = State::unset(held_->workload.model.widths, held_->workload.optimizer.slots());
    read_state(call.file, state);
    network.set_state(state);
    return Nothing{};
  }

  Result operator()(const ReferenceCall& call) {
    if (!held_) throw InputError("nothing is prepared: call prepare first");
    if (!held_->backend->reference)
      throw UnsupportedError("backend " + held_->backend->name + " is no reference");
    ReferenceAnswer result;
    result.free_spreads = held_->backend->reference(
        held_->request(device_), call.steps, call.free_steps, call.wanted,
        [&](const ReferencePoint& point) {
          const ReferenceFiles files{call.folder};
          write_state(files.update(point.contract, point.step), point.update);
          if (call.wanted.copies > 0) write_copies(files.copies(point.contract, point.step), point.copies);
          if (point.contract != call.wanted.contracts.front()) return;
          write_state(files.start(point.step), point.start);
          if (!point.is_probe) result.losses.push_back(point.loss);
        },
        [&](const Parameters& parameters) {
          write_floats(ReferenceFiles{call.folder}.free(), parameters.flat());
        });
    return result;
  }

  Result operator()(const ReleaseCall&) {
    PeakMemory memory;
    if (held_ && held_->trainer) {
      const std::int64_t bytes = held_->trainer->peak_device_bytes();
      if (bytes >= 0) memory.peak_device_bytes = bytes;
    }
    held_.reset();
    return memory;
  }

  Result operator()(const CompileCall& call) {
    const Backend& backend = named_backend(call.backend);
    if (!backend.compile)
      throw UnsupportedError("backend " + backend.name + " compiles nothing for a device that is not there");
    validate(call.workload);
    refuse_what_is_not_trained(backend, call.workload);
    const auto start = std::chrono::steady_clock::now();
    Prepared prepared = backend.compile({call.workload, call.precision, call.target, call.cache_folder});
    prepared.setup_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return prepared;
  }

  Result operator()(const RangeCall& call) {
    if (!description_.range) throw UnsupportedError("worker " + description_.name + " has no ranges");
    description_.range(call.name);
    return Nothing{};
  }

  Result operator()(const CalibrateCall& call) {
    if (!description_.calibrate)
      throw UnsupportedError("worker " + description_.name + " does not calibrate");
    held_.reset();  // a trainer's memory and its L2 lines would be in the way
    return description_.calibrate(call.devices);
  }

 private:
  const Backend& named_backend(const std::string& name) const {
    for (const Backend& backend : description_.backends)
      if (backend.name == name) return backend;
    throw InputError("backend: worker " + description_.name + " has none called '" + one_line(name, 80) +
                     "'");
  }

  const Backend& available_backend(const std::string& name, Precision precision) const {
    const Backend& backend = named_backend(name);
    for (const BackendPrecision& row : backend.precisions) {
      if (row.precision != precision) continue;
      if (row.unavailable) throw UnsupportedError(*row.unavailable);
      return backend;
    }
    throw UnsupportedError("backend " + name + " has no " + std::string(to_string(precision)));
  }

  /// A device for each rank, the worker's own first; without a CUDA device none.
  void check_devices(const PrepareCall& call) const {
    const std::size_t wanted =
        device_ < 0 || call.workload.devices == 1 ? 0 : static_cast<std::size_t>(call.workload.devices);
    if (call.devices.size() != wanted)
      throw InputError("devices: expected " + std::to_string(wanted) + " for a workload of " +
                       std::to_string(call.workload.devices) + ", found " +
                       std::to_string(call.devices.size()));
    if (wanted > 0 && call.devices.front() != device_)
      throw InputError("devices[0]: expected the worker's device " + std::to_string(device_) + ", found " +
                       std::to_string(call.devices.front()));
  }

  static void refuse_what_is_not_trained(const Backend& backend, const Workload& workload) {
    if (workload.devices > backend.max_devices) throw UnsupportedError(trains_on_fewer(backend.max_devices));
    if (backend.trains_everything) return;
    if (const std::string beyond = beyond_plain_training(workload); !beyond.empty())
      throw UnsupportedError(beyond);
  }

  Trainer& trainer() {
    if (!held_ || !held_->trainer) throw InputError("no trainer is prepared: call prepare first");
    return *held_->trainer;
  }

  static Parameters read_parameters(const Workload& workload, const std::filesystem::path& file) {
    Parameters parameters = Parameters::unset(workload.model.widths);
    read_floats(file, parameters.flat());
    return parameters;
  }

  const WorkerDescription& description_;
  int device_;
  std::unique_ptr<Preparation> held_;
};

/// The protocol's ends. The process's own standard input and output are pointed elsewhere, so that a library
/// that prints cannot break a line and a process that it starts holds neither pipe.
struct Channel {
  int input = -1;
  int output = -1;

  static Channel take_over() {
    Channel channel{::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3), ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)};
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (channel.input < 0 || channel.output < 0 || nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 ||
        ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
      throw std::runtime_error(std::string("a worker needs standard input, output and error: ") +
                               std::strerror(errno));
    }
    ::close(nothing);
    return channel;
  }

  /// False at the end of the input.
  bool read_line(std::string& line) {
    while (true) {
      const std::size_t newline = unread.find('\n');
      if (newline != std::string::npos) {
        line = unread.substr(0, newline);
        unread.erase(0, newline + 1);
        return true;
      }
      if (unread.size() > kLongestLine)
        return false;  // no driver of ours; there is no telling where a line begins
      char bytes[65536];
      const ssize_t got = ::read(input, bytes, sizeof bytes);
      if (got > 0) {
        unread.append(bytes, static_cast<std::size_t>(got));
      } else if (got == 0 || errno != EINTR) {
        return false;
      }
    }
  }

  /// False if nobody reads any more.
  bool write_line(std::string line) const {
    line += '\n';
    std::string_view rest = line;
    while (!rest.empty()) {
      const ssize_t written = ::write(output, rest.data(), rest.size());
      if (written >= 0) {
        rest.remove_prefix(static_cast<std::size_t>(written));
      } else if (errno != EINTR) {
        return false;
      }
    }
    return true;
  }

  std::string unread{};
};

struct Answer {
  std::string line;
  bool last = false;  ///< the process has to end behind it
};

Answer answer(Server& server, const std::string& line) {
  std::optional<std::int64_t> id;
  const auto error = [&](CallErrorKind kind, const char* message) {
    return Answer{write_error(id, {kind, message})};
  };
  try {
    const Request request = read_request(line);
    id = request.id;
    return {write_answer(request.id, std::visit(server, request.call))};
  } catch (const MessageError& wrong) {
    if (!id) id = wrong.id();
    return error(CallErrorKind::kInput, wrong.what());
  } catch (const InputError& wrong) {
    return error(CallErrorKind::kInput, wrong.what());
  } catch (const UnsupportedError& unsupported) {
    return error(CallErrorKind::kUnsupported, unsupported.what());
  } catch (const OutOfMemoryError& memory) {
    return error(CallErrorKind::kOutOfMemory, memory.what());
  } catch (const std::bad_alloc&) {
    return error(CallErrorKind::kOutOfMemory, "out of host memory");
  } catch (const DeviceStuckError& stuck) {
    return {write_error(id, {CallErrorKind::kFailed, stuck.what()}), true};
  } catch (const std::exception& failure) {
    return error(CallErrorKind::kFailed, failure.what());
  }
}

/// N of `--device N`; throws InputError.
int parse_device(int argc, char** argv) {
  int device = -1;
  bool given = false;
  for (int index = 1; index < argc; ++index) {
    if (std::string_view(argv[index]) != "--device" || index + 1 == argc) continue;
    const std::string_view text = argv[++index];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), device);
    given = error == std::errc() && end == text.data() + text.size() && device >= -1;
  }
  if (!given) throw InputError("expected --device N, N from 0 for a CUDA device or -1 for none");
  return device;
}

}  // namespace

int serve(int argc, char** argv, const std::function<WorkerDescription(int device)>& describe) {
  Channel channel;
  int device = -1;
  try {
    device = parse_device(argc, argv);
    channel = Channel::take_over();
  } catch (const std::exception& error) {
    std::cerr << argv[0] << ": " << error.what() << '\n';
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);  // a driver that is gone is seen by the failed write

  WorkerDescription description;
  std::optional<std::string> failure;
  try {
    description = describe(device);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  check_names(description);

  Server server(description, device);
  for (std::string line; channel.read_line(line);) {
    if (failure) {
      std::optional<std::int64_t> id;
      try {
        id = read_request(line).id;
      } catch (const MessageError& wrong) {
        id = wrong.id();
      }
      if (!channel.write_line(write_error(id, {CallErrorKind::kFailed, *failure}))) return 1;
    } else {
      const Answer given = answer(server, line);
      const bool written = channel.write_line(given.line);
      // Destructors would wait for the device.
      if (given.last) std::_Exit(1);
      if (!written) return 1;
    }
  }
  return 0;
}

}  // namespace headroom
