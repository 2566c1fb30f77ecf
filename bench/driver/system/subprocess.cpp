#include "driver/system/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "driver/system/interruption.h"
#include "worker/children.h"
#include "worker/descriptor.h"

extern char** environ;

namespace headroom {

ProgramResult run_program(const std::vector<std::string>& arguments, int time_limit_seconds, bool show_errors,
                          const std::vector<std::string>& environment) {
  int pipe_ends[2];
  ProgramResult result;
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return result;
  Descriptor reader(pipe_ends[0]), writer(pipe_ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writer.number(), 1);
  if (!show_errors) posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  const auto pointers = [](const std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
    all.push_back(nullptr);
    return all;
  };
  const std::vector<char*> argv = pointers(arguments), variables = pointers(environment);
  pid_t child = -1;
  int error = 0;
  children::start([&] {
    error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(),
                         environment.empty() ? environ : variables.data());
    return error == 0 ? child : -1;
  });
  posix_spawn_file_actions_destroy(&actions);
  writer.close();
  if (error != 0) return result;
  result.started = true;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(time_limit_seconds);
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{reader.number(), POLLIN, 0};
    // Not longer than a person waits after Ctrl-C, which a terminal may have sent to this process alone.
    constexpr std::int64_t kLongestWait = 200;
    const bool over = left.count() <= 0 || interruption::requested();
    const int ready =
        over ? 0 : poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left.count(), kLongestWait)));
    if ((ready < 0 && errno == EINTR) || (ready == 0 && !over)) continue;
    if (ready <= 0) {
      result.late = true;
      break;
    }
    char buffer[4096];
    const ssize_t count = read(reader.number(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    if (result.output.size() < (1u << 20)) result.output.append(buffer, static_cast<std::size_t>(count));
  }
  reader.close();
  if (result.late) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  children::forget(child);
  if (!result.late && WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

}  // namespace headroom
