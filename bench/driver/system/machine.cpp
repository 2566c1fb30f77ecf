#include "driver/system/machine.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "driver/system/interruption.h"
#include "worker/children.h"
#include "worker/descriptor.h"

extern char** environ;

namespace headroom {
namespace {

namespace fs = std::filesystem;

// Value of the first line `key ... : value` or `key=value` of a file.
std::optional<std::string> value_in(const char* file, const std::string& key, char separator) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    std::string value = line.substr(at + 1);
    value.erase(0, value.find_first_not_of(" \t\""));
    value.erase(value.find_last_not_of(" \t\"") + 1);
    if (!value.empty()) return value;
  }
  return std::nullopt;
}

std::string utc(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  std::strftime(text, sizeof text, format, &parts);
  return text;
}

bool is_git_sha(const std::string& text) {
  return text.size() >= 7 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

GitState git_state_of_build() {
  GitState state;
  const char* sha = std::getenv("HEADROOM_BUILD_GIT_SHA");
  if (sha == nullptr || !is_git_sha(sha)) return state;
  state.sha = sha;
  const char* dirty = std::getenv("HEADROOM_BUILD_GIT_DIRTY");
  if (dirty != nullptr && *dirty != '\0') state.dirty = std::string_view(dirty) != "no";
  return state;
}

}  // namespace

HostInfo describe_host() {
  HostInfo host;
  host.cpu = value_in("/proc/cpuinfo", "model name", ':');
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) host.cores = CPU_COUNT(&allowed);
  host.os = value_in("/etc/os-release", "PRETTY_NAME", '=');
  utsname system{};
  if (uname(&system) == 0) host.kernel = system.release;
  const long pages = sysconf(_SC_PHYS_PAGES);
  if (pages > 0) host.memory_bytes = static_cast<std::int64_t>(pages) * sysconf(_SC_PAGESIZE);
  return host;
}

std::string utc_now() { return utc("%Y-%m-%dT%H:%M:%SZ"); }
std::string utc_for_name() { return utc("%Y%m%dT%H%M%SZ"); }

ProgramResult run_program(const std::vector<std::string>& arguments, int time_limit_seconds,
                          bool show_errors) {
  int pipe_ends[2];
  ProgramResult result;
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return result;
  Descriptor reader(pipe_ends[0]), writer(pipe_ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writer.number(), 1);
  if (!show_errors) posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = -1;
  int error = 0;
  children::start([&] {
    error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
    return error == 0 ? child : -1;
  });
  posix_spawn_file_actions_destroy(&actions);
  writer.close();
  if (error != 0) return result;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(time_limit_seconds);
  bool late = false;
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
      late = true;
      break;
    }
    char buffer[4096];
    const ssize_t count = read(reader.number(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    if (result.output.size() < (1u << 20)) result.output.append(buffer, static_cast<std::size_t>(count));
  }
  reader.close();
  if (late) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  children::forget(child);
  if (!late && WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

int cuda_device_count() {
  const pid_t child = children::start([] { return fork(); });
  if (child == 0) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    using Initialise = int (*)(unsigned);
    using Count = int (*)(int*);
    const auto initialise = driver ? reinterpret_cast<Initialise>(dlsym(driver, "cuInit")) : nullptr;
    const auto count_devices = driver ? reinterpret_cast<Count>(dlsym(driver, "cuDeviceGetCount")) : nullptr;
    int count = 0;
    if (initialise == nullptr || count_devices == nullptr || initialise(0) != 0 || count_devices(&count) != 0)
      count = 0;
    _exit(std::min(count, 255));
  }
  if (child < 0) return 0;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  children::forget(child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

GitState git_state(const fs::path& root) {
  // A build that was carried elsewhere is of its own commit, whatever checkout lies around it there.
  if (GitState state = git_state_of_build(); state.sha) return state;
  ProgramResult sha = run_program({"git", "-C", root.string(), "rev-parse", "HEAD"}, 20, false);
  std::erase_if(sha.output, [](char c) { return c == '\n' || c == '\r'; });
  if (sha.exit_code != 0 || !is_git_sha(sha.output)) {
    // Such as another user's checkout (safe.directory). Where there is no checkout there is nothing to say.
    if (std::error_code ignored; fs::exists(root / ".git", ignored)) {
      fmt::print(
          stderr,
          "headroom: git does not tell the commit of {0}, so the results name none; why: git -C {0} status\n",
          root.string());
    }
    return {};
  }
  GitState state{.sha = sha.output, .dirty = {}};
  const ProgramResult changes =
      run_program({"git", "-C", root.string(), "status", "--porcelain", "--untracked-files=no"}, 60, false);
  if (changes.exit_code == 0) state.dirty = !changes.output.empty();
  return state;
}

std::optional<std::string> source_digest(const fs::path& root) {
  std::error_code ignored;
  if (!fs::exists(root / "bench", ignored)) return std::nullopt;
  std::vector<std::string> files;
  for (const char* folder : {"bench", "cuda_impl", "torch_impl"}) {
    if (!fs::exists(root / folder, ignored)) continue;
    for (auto it = fs::recursive_directory_iterator(root / folder, ignored);
         it != fs::recursive_directory_iterator(); it.increment(ignored)) {
      const fs::path& path = it->path();
      const std::string extension = path.extension().string();
      const bool source = extension == ".h" || extension == ".cpp" || extension == ".cu" ||
                          extension == ".cuh" || extension == ".py" || path.filename() == "CMakeLists.txt";
      if (source && it->is_regular_file(ignored)) files.push_back(path.lexically_relative(root).string());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> parts;
  for (const std::string& file : files) {
    std::ifstream stream(root / file, std::ios::binary);
    std::ostringstream contents;
    contents << stream.rdbuf();
    parts.push_back(file);
    parts.push_back(contents.str());
  }
  return text_digest(parts);
}

std::string text_digest(const std::vector<std::string>& parts) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::string& part : parts) {
    for (const unsigned char byte : part) hash = (hash ^ byte) * 0x100000001b3u;
    hash = (hash ^ 0xffu) * 0x100000001b3u;  // no UTF-8 text holds this byte: it ends each part
  }
  return fmt::format("fnv1a64:{:016x}", hash);
}

std::vector<std::string> publishable_argv(const std::vector<std::string>& argv, const fs::path& root) {
  const auto shorten = [&](const std::string& text) {
    const fs::path path(text);
    if (!path.is_absolute()) return text;
    const fs::path relative = path.lexically_normal().lexically_relative(root.lexically_normal());
    if (!relative.empty() && *relative.begin() != "..") return relative.string();
    const fs::path normal = path.lexically_normal();
    return (normal.has_filename() ? normal.filename() : normal.parent_path().filename()).string();
  };
  std::vector<std::string> shown;
  bool command = false;  // the word after --worker is NAME=COMMAND: only the program's base name is kept
  for (std::string word : argv) {
    if (shown.empty()) word = fs::path(word).filename().string();
    std::string option;
    if (word.starts_with("--")) {
      const std::size_t equals = word.find('=');
      if (equals != std::string::npos) {
        option = word.substr(0, equals + 1);
        word = word.substr(equals + 1);
      }
      command = command || option == "--worker=";
    }
    if (command && !(option.empty() && word == "--worker")) {
      const std::size_t equals = word.find('=');
      std::string words;
      std::istringstream parts(equals == std::string::npos ? word : word.substr(equals + 1));
      for (std::string part; parts >> part;) words += (words.empty() ? "" : " ") + shorten(part);
      word = (equals == std::string::npos ? "" : word.substr(0, equals + 1)) + words;
      command = false;
    } else {
      word = shorten(word);
    }
    command = command || (option.empty() && word == "--worker");
    // What leads out of the checkout says something about the machine.
    if (word.find("../") != std::string::npos) word = fs::path(word).lexically_normal().filename().string();
    shown.push_back(option + word);
  }
  return shown;
}

}  // namespace headroom
