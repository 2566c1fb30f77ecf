#include "driver/system/interruption.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "driver/system/made_folder.h"
#include "worker/children.h"

namespace headroom::interruption {
namespace {

std::atomic<bool> asked{false};
int pipe_ends[2] = {-1, -1};
std::mutex mutex;
std::list<std::function<void()>> actions;
std::set<std::filesystem::path> paths;

void on_signal(int) {
  const int saved = errno;
  asked = true;
  [[maybe_unused]] const ssize_t written = write(pipe_ends[1], "!", 1);
  errno = saved;
}

void watch() {
  char byte;
  while (read(pipe_ends[0], &byte, 1) < 0 && errno == EINTR) {
  }
  {
    const std::lock_guard lock(mutex);
    for (const std::function<void()>& action : actions) action();
  }
  std::this_thread::sleep_for(std::chrono::seconds(4));
  const std::lock_guard lock(mutex);
  children::end_orphans();
  for (const std::filesystem::path& path : paths) {
    if (unlink(path.c_str()) != 0) remove_made_folder(path);  // which does not take a folder
  }
  _exit(kExitCode);
}

}  // namespace

void install() {
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return;
  std::thread(watch).detach();
  struct sigaction handler{};
  handler.sa_handler = on_signal;
  sigemptyset(&handler.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &handler, nullptr);
  // What cannot be written is told by the call that failed.
  for (const int number : {SIGPIPE, SIGXFSZ}) ::signal(number, SIG_IGN);
}

bool requested() { return asked; }

void throw_if_requested() {
  if (asked) throw Interrupted{};
}

Action::Action(std::function<void()> action) {
  const std::lock_guard lock(mutex);
  place_ = actions.insert(actions.end(), std::move(action));
}

Action::~Action() {
  const std::lock_guard lock(mutex);
  actions.erase(place_);
}

void add_path(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex);
  paths.insert(path);
}

void drop_path(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex);
  paths.erase(path);
}

}  // namespace headroom::interruption
