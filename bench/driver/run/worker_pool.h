// Worker processes of one set of programs: one for each program to learn what it offers, one for each backend to train.
//
// A program may serve several backends but holds one trainer at a time. Where the blocks of all backends are interleaved
// every backend gets a process of its own, client(); where cells are measured one after the other the program's first
// process serves them all, greeted(). One that is lost is started again when it is next needed.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "driver/plan/backends.h"
#include "driver/system/interruption.h"
#include "worker/client.h"

namespace headroom {

/// What became of one worker program's hello.
struct Greeting {
  std::string worker;
  std::optional<WorkerHello> hello;  ///< kept for the whole run, also when the process is gone
  bool asked = false;
  std::string problem;          ///< what went wrong the last time that a process of it was started
  bool not_built = false;       ///< the program is not there, as opposed to one that failed
  bool killed = false;          ///< it died with a signal before it had answered
  bool other_protocol = false;  ///< it speaks another version of the protocol
  bool kept = true;             ///< takes part in the run
};

/// Whether a (backend, precision) runs here.
struct Availability {
  enum class State { kAvailable, kSkipped, kFailed } state = State::kAvailable;
  std::string reason;
  Contract contract = Contract::kExact;
};

class WorkerPool {
 public:
  /// Ctrl-C kills what runs. `log_folder` holds a file for each purpose that a process is started for. `peers`: what workloads
  /// of several devices may use beside `device`.
  WorkerPool(std::vector<WorkerProgram> programs, int device, TimeLimits limits,
             std::filesystem::path log_folder, std::vector<int> peers = {});
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Starts those of the programs in `wanted` that were not greeted yet, at the same time, and asks each what
  /// it offers.
  void greet(const std::vector<std::string>& wanted);
  void greet_all();
  const std::vector<Greeting>& greetings() const { return greetings_; }

  /// The same of one program in two steps, so that those of two pools start at the same time. launch() starts its process
  /// and returns true, unless that runs; meet() waits until it answers, the first time with what it offers. What goes wrong
  /// is kept in the greeting.
  bool launch(const std::string& worker);
  void meet(const std::string& worker);
  /// Throws WorkerLostError if the pool has no such program.
  const Greeting& greeting(const std::string& worker) const;

  /// What those that answered offer, a family after the other. Throws InputError if one offers a backend that another worker
  /// has already.
  std::vector<BackendRow> rows() const;
  /// Those that were asked and did not say what they offer.
  std::vector<const Greeting*> silent() const;
  /// Ends the greeted processes of the other programs, and no longer counts their software.
  void keep_only(const std::set<std::string>& workers);

  /// `devices`: of the workload.
  Availability availability(const BackendRow& row, Precision precision, int devices = 1) const;
  std::optional<DeviceInfo> device() const;
  /// What the workers say of that device; nullopt if none says anything.
  std::optional<DeviceInfo> device(int index) const;
  std::map<std::string, std::string> software() const;  ///< of those that are kept

  /// What the plan's workloads use beside the device. A process that starts from here on is told all of them (HEADROOM_DEVICES), and the
  /// greeted process of JAX ends: it has the devices of its beginning for good.
  void use_peers(const std::vector<int>& peers);

  /// What the greeted workers measure of the device itself, one after the other; where two measure the same rate, the
  /// better one. A worker that fails is ended and costs its rates and one line, which goes to `complain`.
  /// `peers`: devices whose links are measured too.
  Calibration calibrate(const std::vector<int>& peers,
                        const std::function<void(const std::string&)>& complain);

  /// Starts at the same time the processes that client() would start one by one for these rows, and waits until all are
  /// ready. A greeted process serves the first row of its program; one that fails here is started again, and complained
  /// of, by client().
  void start_ahead(const std::vector<BackendRow>& rows);

  /// The process that serves `row`, started if need be. Throws WorkerLostError or WorkerCallError.
  WorkerClient& client(const BackendRow& row);
  /// The process that was greeted, or met since. Throws WorkerLostError with what went wrong, which may be that the build
  /// has no such program.
  WorkerClient& greeted(const std::string& worker);
  /// One more process of `row`'s program, for as long as it is held; `environment` is added to the program's. It dies with
  /// the thread that calls. Throws as client() does.
  std::shared_ptr<WorkerClient> start_aside(const BackendRow& row, const std::string& purpose,
                                            const std::map<std::string, std::string>& environment);
  /// Ends the process of a backend, so that the next client() starts a new one.
  void end(const std::string& backend);
  /// Ends the process that greeted() gives.
  void end_greeted(const std::string& worker);
  /// Ends all processes, at the same time: one that holds a CUDA context takes a second.
  void end_all();
  /// Kills every process; safe to call from another thread.
  void kill_all();

 private:
  using Processes = std::map<std::string, std::shared_ptr<WorkerClient>>;

  /// What starts for the same purpose appends to the same log.
  std::shared_ptr<WorkerClient> start(const WorkerProgram& program, const std::string& purpose);
  /// Of what a worker would offer that did not say so, and of what any of them may offer.
  Availability availability_of(const Greeting& silent) const;
  Availability availability_of_silent() const;
  Greeting* find_greeting(const std::string& worker);
  const Greeting* find_greeting(const std::string& worker) const;
  /// The process of that name, or null; one that has ended counts as none.
  std::shared_ptr<WorkerClient> living(const Processes& processes, const std::string& name);
  void end(Processes& processes, const std::string& name);
  /// Throws WorkerLostError if there is none.
  const WorkerProgram& program_of(const std::string& worker) const;

  std::vector<WorkerProgram> programs_;
  int device_;
  std::vector<int> peers_;
  std::string used_devices_;  // HEADROOM_DEVICES, if the plan's workloads use more than one
  TimeLimits limits_;
  std::filesystem::path log_folder_;
  std::vector<Greeting> greetings_;
  std::mutex mutex_;   // guards what follows
  Processes greeted_;  // by program: those that serve no backend of their own
  Processes serving_;  // by backend
  std::vector<std::weak_ptr<WorkerClient>> aside_;
  std::map<std::string, std::size_t> logs_;  // numbers of the files, by purpose
  interruption::Action killing_{[this] { kill_all(); }};
};

}  // namespace headroom
