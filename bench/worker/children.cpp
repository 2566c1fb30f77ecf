#include "worker/children.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace headroom::children {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);

std::mutex mutex;  // guards what follows; held while a process is started
std::set<pid_t> known;
bool adopting = false;

template <typename Number>
bool is_number(const std::string& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// The fourth field of /proc/PID/stat; the second is the program's name in brackets, which may hold anything.
pid_t parent_of(const std::string& pid) {
  std::ifstream stream("/proc/" + pid + "/stat");
  std::string text;
  std::getline(stream, text, '\0');
  const std::size_t name_end = text.rfind(')');
  pid_t parent = 0;
  if (name_end == std::string::npos || text.size() < name_end + 5) return 0;
  const std::size_t begin = name_end + 4;  // after ") S "
  is_number(text.substr(begin, text.find(' ', begin) - begin), parent);
  return parent;
}

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry("/proc", ignored), end; entry != end;
       entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    if (is_number(name, pid) && parent_of(name) == ::getpid()) found.push_back(pid);
  }
  return found;
}

}  // namespace

void adopt_orphans() {
  const std::lock_guard lock(mutex);
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return;
  adopting = true;
  for (const pid_t child : children_of_this_process()) known.insert(child);
}

pid_t start(const std::function<pid_t()>& fork_or_spawn) {
  const std::lock_guard lock(mutex);
  const pid_t pid = fork_or_spawn();
  if (pid > 0) known.insert(pid);
  return pid;
}

void forget(pid_t pid) {
  const std::lock_guard lock(mutex);
  known.erase(pid);
}

void end_orphans() {
  const std::lock_guard lock(mutex);
  if (!adopting) return;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    std::vector<pid_t> orphans = children_of_this_process();
    std::erase_if(orphans, [](pid_t pid) { return known.count(pid) > 0; });
    if (orphans.empty()) return;
    for (const pid_t pid : orphans) ::kill(pid, SIGKILL);
    // Its own children are ours from the moment that it can be reaped.
    while (std::erase_if(orphans, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; }),
           !orphans.empty() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace headroom::children
