// nvcc as a program of its own, in a folder for temporary files that holds the embedded headers.
#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>

#include "jit/compiler.h"
#include "jit/sources.h"

namespace headroom::jit {
namespace {

namespace fs = std::filesystem;

std::runtime_error system_error(const std::string& what) {
  return std::runtime_error("nvcc: " + what + ": " + std::strerror(errno));
}

/// A folder for temporary files that is removed with its owner. The lock in it tells `./headroom clean` whether a process
/// that was killed left it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    const fs::path parent = fs::temp_directory_path(error);
    std::string name = ((error ? fs::path("/tmp") : parent) / "headroom-compile-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw system_error(name);
    path_ = name;
    lock_ = open((path_ / "owner.lock").c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (lock_ >= 0) (void)flock(lock_, LOCK_EX | LOCK_NB);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    if (lock_ >= 0) close(lock_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int lock_ = -1;
};

struct Ended {
  int status;          ///< of waitpid()
  std::string output;  ///< standard output and error
  bool well() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
};

/// What would change the code that nvcc or its host compiler makes.
bool is_left_out(std::string_view entry) {
  for (const std::string_view name :
       {"NVCC_APPEND_FLAGS=", "NVCC_PREPEND_FLAGS=", "CPATH=", "C_INCLUDE_PATH=", "CPLUS_INCLUDE_PATH=",
        "TMPDIR=", "LANG=", "LC_ALL=", "LANGUAGE="})
    if (entry.starts_with(name)) return true;
  return false;
}

/// Runs a program to its end. `temporary`: where it may write; empty: wherever it likes.
Ended run(const std::vector<std::string>& command, const std::string& temporary) {
  std::vector<std::string> variables = {"LC_ALL=C"};
  if (!temporary.empty()) variables.push_back("TMPDIR=" + temporary);
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (!is_left_out(*entry)) variables.emplace_back(*entry);
  const auto pointers = [](const std::vector<std::string>& texts) {
    std::vector<char*> result;
    for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
  };
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw system_error("pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  pid_t child = -1;
  const int error = posix_spawn(&child, command[0].c_str(), &actions, nullptr, pointers(command).data(),
                                pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  Ended ended{-1, {}};
  std::array<char, 4096> bytes;
  while (error == 0) {
    const ssize_t got = read(ends[0], bytes.data(), bytes.size());
    if (got > 0) {
      ended.output.append(bytes.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      break;
    }
  }
  close(ends[0]);
  if (error != 0) {
    errno = error;
    throw system_error(command[0]);
  }
  while (waitpid(child, &ended.status, 0) < 0 && errno == EINTR) {
  }
  return ended;
}

void write_file(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.flush()) throw system_error(path.string());
}

class Nvcc final : public Compiler {
 public:
  explicit Nvcc(const fs::path& program) : program_(program) {
    const Ended version = run({program.string(), "--version"}, "");
    std::smatch found;
    static const std::regex pattern("release (\\d+)\\.(\\d+), V([0-9.]+)");
    if (!version.well() || !std::regex_search(version.output, found, pattern))
      throw std::runtime_error(program.string() + ": does not say its version as nvcc does");
    const int major = std::stoi(found[1]), minor = std::stoi(found[2]);
    if (major < 12 || (major == 12 && minor < 8))
      throw std::runtime_error(program.string() + ": is " + found[3].str() + "; 12.8 or newer is needed");
    name_ = "nvcc " + found[3].str();
    identity_ = version.output;
  }
  const std::string& name() const override { return name_; }
  const std::string& identity() const override { return identity_; }

  Cubin compile(const Request& request, const Architecture& architecture) const override {
    const TemporaryFolder folder;
    for (const Source& source : embedded_sources())
      if (source.origin == Source::Origin::kOurs)
        write_file(folder.path() / "include" / source.name, source.text);
    // A host variable that holds the kernel's address makes the compiler instantiate it.
    const fs::path program = folder.path() / "kernel.cu", output = folder.path() / "kernel.cubin";
    write_file(program, program_text(request) + "const void* const compiled_kernel = (const void*)&" +
                            request.kernel + ";\n");
    std::vector<std::string> command = {program_.string(),
                                        "-cubin",
                                        "-arch=" + architecture.name(),
                                        "-std=c++20",
                                        "-O3",
                                        "-DNDEBUG",
                                        "-Xptxas=-v,-warn-spills",
                                        "-I" + (folder.path() / "include").string(),
                                        "-o",
                                        output.string(),
                                        program.string()};
    command.insert(command.end(), request.options.begin(), request.options.end());
    const Ended ended = run(command, folder.path().string());
    if (!ended.well()) throw internal::failed(request, name_, without(ended.output, folder.path()));
    Cubin cubin;
    internal::read_log(request, without(ended.output, folder.path()), cubin);
    std::ifstream file(output, std::ios::binary);
    cubin.bytes.assign(std::istreambuf_iterator<char>(file), {});
    if (cubin.bytes.empty()) throw internal::failed(request, name_, "error: it has written no cubin");
    return cubin;
  }

 private:
  /// The folder's name is another every time.
  static std::string without(std::string text, const fs::path& folder) {
    for (const std::string& prefix : {(folder / "include").string() + "/", folder.string() + "/"})
      for (std::size_t at; (at = text.find(prefix)) != text.npos;) text.erase(at, prefix.size());
    return text;
  }

  fs::path program_;
  std::string name_, identity_;
};

}  // namespace

std::unique_ptr<Compiler> make_nvcc(const fs::path& program) { return std::make_unique<Nvcc>(program); }

}  // namespace headroom::jit
