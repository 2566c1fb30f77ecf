#include "worker/client.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "worker/children.h"
#include "worker/descriptor.h"
#include "worker/environment.h"
#include "worker/regular_file.h"

namespace headroom {
namespace {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

constexpr std::size_t kLogLines = 5;
constexpr std::int64_t kLogBytes = 4096;

/// Something went wrong on the line; WorkerClient adds the worker's name, its fate and its log.
struct LineError {
  enum class Kind { kClosed, kTimeout, kOther };
  std::string what;
  Kind kind = Kind::kOther;
};

struct Pipe {
  Descriptor reader, writer;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw LineError{std::string("no pipe: ") + std::strerror(errno)};
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

void set_nonblocking(const Descriptor& descriptor) {
  ::fcntl(descriptor.number(), F_SETFL, ::fcntl(descriptor.number(), F_GETFL) | O_NONBLOCK);
}

/// Writing to a worker that has died must be an error of this call, not a signal that ends the driver.
class WithoutBrokenPipeSignal {
 public:
  WithoutBrokenPipeSignal() {
    sigemptyset(&broken_pipe_);
    sigaddset(&broken_pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &broken_pipe_, &before_);
  }
  ~WithoutBrokenPipeSignal() {
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&broken_pipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutBrokenPipeSignal(const WithoutBrokenPipeSignal&) = delete;
  WithoutBrokenPipeSignal& operator=(const WithoutBrokenPipeSignal&) = delete;

 private:
  sigset_t broken_pipe_, before_;
  bool was_pending_ = false;
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::int64_t size_of(const Descriptor& file) {
  struct stat status{};
  return ::fstat(file.number(), &status) == 0 ? status.st_size : 0;
}

std::string seconds_text(std::chrono::milliseconds duration) {
  if (duration.count() % 1000 == 0) return std::to_string(duration.count() / 1000) + " s";
  return std::to_string(duration.count()) + " ms";
}

}  // namespace

/// The child, its two pipes and its end. Whatever happens it is reaped, and its group killed, exactly once.
class WorkerClient::Process {
 public:
  Process(const WorkerCommand& command, int device, std::chrono::milliseconds goodbye);
  ~Process() {
    to_worker_.close();  // the worker reads the end of its input and ends
    const Deadline deadline = Clock::now() + goodbye_;
    while (!has_exited() && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    end();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Throw LineError.
  void write_line(std::string line, Deadline deadline);
  std::string read_line(Deadline deadline);
  /// What it has written that nobody read yet, without waiting.
  std::string take_unread();

  /// Waits up to `patience` for it to end by itself, as it does after closing its output.
  bool exits_within(std::chrono::milliseconds patience) const {
    const Deadline deadline = Clock::now() + patience;
    while (!has_exited() && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return has_exited();
  }
  bool has_exited() const;
  void kill_group() const;
  /// Kills the group, reaps the worker, and says how it ended: "died with signal 11 (Segmentation fault)".
  std::string end();
  bool died_with_signal() const { return died_with_signal_; }  ///< after end()
  std::string log_tail() const;

 private:
  [[noreturn]] void run_child(char* const* arguments, char* const* environment, int input, int output,
                              int error, int report, pid_t parent) const;

  std::chrono::milliseconds goodbye_;
  pid_t pid_ = -1;
  Descriptor to_worker_, from_worker_;
  std::string unread_;
  Descriptor log_;              // what it is called may be another file by now
  std::int64_t log_start_ = 0;  // a restarted worker appends; its messages begin here
  mutable std::mutex reaping_;  // a pid must not be signalled once it is reaped: it may be somebody else's
  bool reaped_ = false, died_with_signal_ = false;
  std::string fate_;
};

WorkerClient::Process::Process(const WorkerCommand& command, int device, std::chrono::milliseconds goodbye)
    : goodbye_(goodbye) {
  if (command.arguments.empty()) throw LineError{"cannot be started: no program given"};
  Pipe input = make_pipe();
  Pipe output = make_pipe();
  Pipe report = make_pipe();  // the child's errno, if it cannot become the program
  if (!command.log_file.empty()) {
    remove_unless_regular(command.log_file);
    log_ = open_regular_file(command.log_file, O_RDWR | O_CREAT | O_APPEND);
    if (!log_) {
      throw LineError{"cannot be started: its log " + command.log_file.string() + ": " + open_failure(errno)};
    }
    log_start_ = size_of(log_);
  }

  // Everything that allocates happens before the fork: another thread may hold the allocator's lock.
  std::vector<std::string> arguments = command.arguments;
  arguments.push_back("--device");
  arguments.push_back(std::to_string(device));
  std::vector<std::string> environment = worker_environment(command.environment);
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> environment_pointers = pointers(environment);
  const pid_t parent = ::getpid();
  const int error = log_ ? log_.number() : STDERR_FILENO;

  pid_ = children::start([] { return ::fork(); });
  if (pid_ < 0) throw LineError{std::string("cannot be started: ") + std::strerror(errno)};
  if (pid_ == 0) {
    run_child(argument_pointers.data(), environment_pointers.data(), input.reader.number(),
              output.writer.number(), error, report.writer.number(), parent);
  }
  ::setpgid(pid_, pid_);  // here and in the child: whoever comes first
  input.reader.close();
  output.writer.close();
  report.writer.close();
  int code = 0;
  ssize_t got = 0;
  do {
    got = ::read(report.reader.number(), &code, sizeof code);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof code) {
    end();
    throw LineError{"cannot be started: " + command.arguments.front() + ": " + std::strerror(code)};
  }
  to_worker_ = std::move(input.writer);
  from_worker_ = std::move(output.reader);
  set_nonblocking(to_worker_);
  set_nonblocking(from_worker_);
}

void WorkerClient::Process::run_child(char* const* arguments, char* const* environment, int input, int output,
                                      int error, int report, pid_t parent) const {
  // Between fork and exec only system calls: no allocation, no exception.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);       // survives exec: a driver that is killed leaves no worker behind
  if (::getppid() != parent) ::_exit(127);  // it died before that took effect
  for (const int signal : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // All ends are above 2 unless this program was started with closed standard descriptors; copies above 2 are
  // safe in either case, and dup2 drops their close-on-exec.
  const int safe_input = ::fcntl(input, F_DUPFD_CLOEXEC, 3);
  const int safe_output = ::fcntl(output, F_DUPFD_CLOEXEC, 3);
  const int safe_error = ::fcntl(error, F_DUPFD_CLOEXEC, 3);
  const int safe_report = ::fcntl(report, F_DUPFD_CLOEXEC, 3);
  if (::dup2(safe_input, STDIN_FILENO) >= 0 && ::dup2(safe_output, STDOUT_FILENO) >= 0 &&
      (safe_error < 0 || ::dup2(safe_error, STDERR_FILENO) >= 0)) {
    // Whatever this program has inherited or left open stays here; kernels before 5.11 cannot, and it does
    // not matter.
    ::syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
    ::execvpe(arguments[0], arguments, environment);
  }
  const int code = errno;
  if (::write(safe_report, &code, sizeof code) != sizeof code) ::_exit(126);
  ::_exit(127);
}

void WorkerClient::Process::write_line(std::string line, Deadline deadline) {
  line += '\n';
  const WithoutBrokenPipeSignal no_signal;
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(to_worker_.number(), rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      if (Clock::now() >= deadline) throw LineError{"", LineError::Kind::kTimeout};
      pollfd waiting{to_worker_.number(), POLLOUT, 0};
      ::poll(&waiting, 1, 100);
    } else if (errno == EPIPE) {
      throw LineError{"closed its input", LineError::Kind::kClosed};
    } else if (errno != EINTR) {
      throw LineError{std::string("cannot be written to: ") + std::strerror(errno)};
    }
  }
}

std::string WorkerClient::Process::read_line(Deadline deadline) {
  std::size_t searched = 0;
  while (true) {
    const std::size_t newline = unread_.find('\n', searched);
    if (newline != std::string::npos) {
      std::string line = unread_.substr(0, newline);
      unread_.erase(0, newline + 1);
      return line;
    }
    searched = unread_.size();
    if (unread_.size() > kLongestLine) {
      throw LineError{"wrote a line of more than " + std::to_string(kLongestLine) + " bytes"};
    }
    char bytes[65536];
    const ssize_t got = ::read(from_worker_.number(), bytes, sizeof bytes);
    if (got > 0) {
      unread_.append(bytes, static_cast<std::size_t>(got));
    } else if (got == 0) {
      throw LineError{"closed its output", LineError::Kind::kClosed};
    } else if (errno == EAGAIN) {
      // The output stays open while a process that the worker started lives, so its own end is looked for
      // too.
      const bool exited = has_exited();
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) throw LineError{"", LineError::Kind::kTimeout};
      pollfd waiting{from_worker_.number(), POLLIN, 0};
      const int ready =
          ::poll(&waiting, 1, exited ? 0 : static_cast<int>(std::min<long long>(left + 1, 100)));
      if (exited && ready == 0) throw LineError{"closed its output", LineError::Kind::kClosed};
    } else if (errno != EINTR) {
      throw LineError{std::string("cannot be read from: ") + std::strerror(errno)};
    }
  }
}

std::string WorkerClient::Process::take_unread() {
  char bytes[256];
  const ssize_t got = ::read(from_worker_.number(), bytes, sizeof bytes);
  if (got > 0) unread_.append(bytes, static_cast<std::size_t>(got));
  return std::exchange(unread_, {});
}

bool WorkerClient::Process::has_exited() const {
  const std::lock_guard lock(reaping_);
  if (reaped_) return true;
  siginfo_t info{};
  // WNOWAIT leaves it a zombie, so that its pid, which is also its group's, stays ours until end().
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

void WorkerClient::Process::kill_group() const {
  const std::lock_guard lock(reaping_);
  if (reaped_) return;
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);  // in case it has left its group
}

std::string WorkerClient::Process::end() {
  if (reaped_) return fate_;
  kill_group();
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  const std::lock_guard lock(reaping_);
  reaped_ = true;
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  died_with_signal_ = WIFSIGNALED(status);
  if (died_with_signal_) {
    const int signal = WTERMSIG(status);
    fate_ = "died with signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
  } else {
    fate_ = "exited with status " + std::to_string(WEXITSTATUS(status));
  }
  children::forget(pid_);
  children::end_orphans();
  return fate_;
}

std::string WorkerClient::Process::log_tail() const {
  const std::int64_t size = log_ ? size_of(log_) : 0;
  const std::int64_t begin = std::max(log_start_, size - kLogBytes);
  if (size <= begin) return {};
  std::string text(static_cast<std::size_t>(size - begin), '\0');
  text.resize(static_cast<std::size_t>(
      std::max<ssize_t>(0, ::pread(log_.number(), text.data(), text.size(), begin))));
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    line = one_line(line, 300);
    if (!line.empty()) lines.push_back(line);
  }
  if (lines.size() > kLogLines) lines.erase(lines.begin(), lines.end() - kLogLines);
  std::string tail;
  for (const std::string& line : lines) tail += (tail.empty() ? "" : " | ") + line;
  return tail;
}

WorkerClient::WorkerClient(WorkerCommand command, int device, TimeLimits limits, std::vector<int> peers)
    : command_(std::move(command)), device_(device), limits_(limits), peers_(std::move(peers)) {
  try {
    process_ = std::make_unique<Process>(command_, device, limits_.goodbye);
  } catch (const LineError& error) {
    throw WorkerLostError("worker " + command_.name + " " + error.what);
  }
}

WorkerClient::~WorkerClient() = default;

template <typename Error>
void WorkerClient::lose(const std::string& what) {
  process_->end();
  const std::string tail = process_->log_tail();
  throw Error(
      one_line("worker " + command_.name + " " + what + (tail.empty() ? "" : "; its log ends: " + tail)));
}

template <typename Answer>
Answer WorkerClient::call(Call request, std::chrono::milliseconds limit) {
  const std::string name(name_of(request));
  const std::int64_t id = next_id_++;
  const Deadline deadline = Clock::now() + limit;
  try {
    // Bytes that nobody asked for would be taken for the answer, or shift every answer by one.
    const std::string unasked = process_->take_unread();
    if (!unasked.empty()) throw MessageError("it wrote before it was asked: '" + one_line(unasked, 80) + "'");
    process_->write_line(write_request({id, std::move(request)}), deadline);
    const std::string line = process_->read_line(deadline);
    std::variant<Answer, CallError> answer = read_answer<Answer>(line, id);
    if (const CallError* error = std::get_if<CallError>(&answer))
      throw WorkerCallError(error->kind, error->message);
    return std::get<Answer>(std::move(answer));
  } catch (const LineError& error) {
    if (error.kind == LineError::Kind::kTimeout) {
      lose<WorkerTimeoutError>("gave no answer to '" + name + "' within " + seconds_text(limit) +
                               " and was ended");
    }
    // Its output ends a moment before it does.
    if (process_->exits_within(std::chrono::milliseconds(1000))) {
      const std::string fate = process_->end() + " during '" + name + "'";
      if (process_->died_with_signal()) lose<WorkerKilledError>(fate);
      lose(fate);
    }
    lose(error.what + " during '" + name + "' and was ended");
  } catch (const OtherProtocolError& error) {
    lose<WorkerProtocolError>("gave a wrong answer to '" + name + "' and was ended: " + error.what());
  } catch (const MessageError& error) {
    lose("gave a wrong answer to '" + name + "' and was ended: " + error.what());
  }
}

WorkerHello WorkerClient::hello() { return call<WorkerHello>(HelloCall{}, limits_.hello); }

Prepared WorkerClient::prepare(const std::string& backend, const Workload& workload, Precision precision,
                               const DataFiles& data, const std::filesystem::path& parameters_file,
                               const std::string& cache_folder) {
  std::vector<int> devices;
  if (device_ >= 0 && workload.devices > 1) {
    devices = {device_};
    for (const int peer : peers_)
      if (std::ssize(devices) < workload.devices) devices.push_back(peer);
  }
  return call<Prepared>(
      PrepareCall{backend, workload, precision, data, parameters_file, cache_folder, std::move(devices)},
      limits_.prepare);
}

Prepared WorkerClient::compile(const std::string& backend, const Workload& workload, Precision precision,
                               const std::string& cache_folder, const TargetDevice& target) {
  return call<Prepared>(CompileCall{backend, workload, precision, cache_folder, target}, limits_.prepare);
}

Timing WorkerClient::train(std::int64_t first_step, std::int64_t count) {
  return call<Timing>(TrainCall{first_step, count}, limits_.train);
}

std::vector<float> WorkerClient::losses(std::int64_t first_step, std::int64_t count,
                                        const std::filesystem::path& scratch) {
  // A worker before this one may have left something there that would hold this one up.
  remove_unless_regular(scratch);
  const ValueCount written = call<ValueCount>(LossesCall{first_step, count, scratch}, limits_.other);
  std::error_code ignored;
  try {
    if (written.count != count) {
      throw std::runtime_error("count: expected " + std::to_string(count) + ", found " +
                               std::to_string(written.count));
    }
    std::vector<float> values = read_floats(scratch, count);
    std::filesystem::remove(scratch, ignored);
    return values;
  } catch (const std::runtime_error& error) {
    std::filesystem::remove_all(scratch, ignored);
    lose(std::string("gave a wrong answer to 'losses' and was ended: ") + error.what());
  }
}

void WorkerClient::state(const std::filesystem::path& file) {
  remove_unless_regular(file);
  const ValueCount written = call<ValueCount>(StateCall{file}, limits_.other);
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  if (error || bytes != static_cast<std::uintmax_t>(written.count) * sizeof(float)) {
    lose("gave a wrong answer to 'state' and was ended: it says that it wrote " +
         std::to_string(written.count) + " values to " + file.string() + ", which are not there");
  }
}

void WorkerClient::set_state(const std::filesystem::path& file) {
  call<Nothing>(SetStateCall{file}, limits_.other);
}

ReferenceAnswer WorkerClient::reference(const std::vector<std::int64_t>& steps, std::int64_t free_steps,
                                        const ReferenceWanted& wanted, const std::filesystem::path& folder) {
  ReferenceAnswer result =
      call<ReferenceAnswer>(ReferenceCall{steps, free_steps, folder, wanted}, limits_.reference);
  if (result.losses.size() != steps.size()) {
    lose("gave a wrong answer to 'reference' and was ended: expected " + std::to_string(steps.size()) +
         " losses, found " + std::to_string(result.losses.size()));
  }
  const std::size_t spreads = free_steps > 0 && wanted.copies > 0 ? wanted.contracts.size() : 0;
  if (result.free_spreads.size() != spreads) {
    lose("gave a wrong answer to 'reference' and was ended: expected " + std::to_string(spreads) +
         " spreads, found " + std::to_string(result.free_spreads.size()));
  }
  return result;
}

std::optional<std::int64_t> WorkerClient::release() {
  return call<PeakMemory>(ReleaseCall{}, limits_.other).peak_device_bytes;
}

void WorkerClient::range(const std::string& name) { call<Nothing>(RangeCall{name}, limits_.other); }

Calibration WorkerClient::calibrate(const std::vector<int>& peers) {
  CalibrateCall asked;
  if (!peers.empty()) asked.devices.push_back(device_);
  asked.devices.insert(asked.devices.end(), peers.begin(), peers.end());
  return call<Calibration>(std::move(asked), limits_.other);
}

bool WorkerClient::alive() const { return !process_->has_exited(); }

void WorkerClient::kill() { process_->kill_group(); }

}  // namespace headroom
