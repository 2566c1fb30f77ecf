// Ctrl-C and SIGTERM: a run ends in order, with what was finished in its file.
//
// The signal handler only writes to a pipe. A watcher thread then ends the workers, so that whatever the main
// thread waits for comes back with an error and it unwinds; if it has not within a few seconds (it may be
// computing), the watcher removes the temporary folder itself and leaves with the exit code.
#pragma once

#include <filesystem>
#include <functional>
#include <list>

namespace headroom {

/// Thrown in the main thread when the user asked to stop; not derived from std::exception, so that no catch
/// clause for a failed record can take it for one.
struct Interrupted {};

namespace interruption {
inline constexpr int kExitCode = 130;

/// Installs the handlers and starts the watcher. Once per process.
void install();
bool requested();
/// Throws Interrupted if the user asked to stop.
void throw_if_requested();
/// What the watcher does first, such as ending workers; called on its thread for as long as this object lives.
class Action {
 public:
  explicit Action(std::function<void()> action);
  ~Action();
  Action(const Action&) = delete;
  Action& operator=(const Action&) = delete;

 private:
  std::list<std::function<void()>>::iterator place_;
};
/// Files and folders that the watcher removes if the main thread does not come back.
void add_path(const std::filesystem::path& path);
void drop_path(const std::filesystem::path& path);
}  // namespace interruption

}  // namespace headroom
