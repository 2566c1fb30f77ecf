// The worker processes of both sides of a comparison: for each program one of base and one of head, started side by
// side and ended after every launch, since two processes of the same build differ too.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "driver/plan/backends.h"
#include "worker/client.h"

namespace headroom {

enum class Side { kBase = 0, kHead = 1 };
inline constexpr std::array<Side, 2> kSides = {Side::kBase, Side::kHead};
const char* to_string(Side side);  ///< "base", "head"

class SideWorkers {
 public:
  /// `programs`: of base and of head. Ctrl-C kills what runs.
  SideWorkers(std::array<std::vector<WorkerProgram>, 2> programs, int device, TimeLimits limits,
              std::filesystem::path log_folder);
  ~SideWorkers();
  SideWorkers(const SideWorkers&) = delete;
  SideWorkers& operator=(const SideWorkers&) = delete;

  /// Starts `worker` (a program's name) on both sides where it does not run; what goes wrong is kept for client().
  /// Throws NotComparableError if one speaks another version of the protocol.
  void start(const std::string& worker);
  /// Throws std::runtime_error with what went wrong, which may be that the build has no such program.
  WorkerClient& client(Side side, const std::string& worker);
  /// Of a program that was started; nullopt if it never answered.
  const std::optional<WorkerHello>& hello(Side side, const std::string& worker);
  void end(Side side, const std::string& worker);
  void end_all();

 private:
  struct Process {
    std::shared_ptr<WorkerClient> client;
    std::optional<WorkerHello> hello;
    std::string problem;
  };
  Process& process(Side side, const std::string& worker) { return processes_[{side, worker}]; }
  void launch(Side side, const std::string& worker);
  void greet(Side side, const std::string& worker);
  void kill_all();

  std::array<std::vector<WorkerProgram>, 2> programs_;
  int device_;
  TimeLimits limits_;
  std::filesystem::path log_folder_;
  std::mutex mutex_;  // guards the clients of processes_: the watcher of Ctrl-C reads them
  std::map<std::pair<Side, std::string>, Process> processes_;
};

}  // namespace headroom
