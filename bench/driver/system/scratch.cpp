#include "driver/system/scratch.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "core/error.h"
#include "driver/system/interruption.h"

namespace headroom {

namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "headroom-";
constexpr std::time_t kJustMadeSeconds = 60;

// headroom-PID-XXXXXX; the tests' folders and lock files have other names.
bool is_scratch_name(const std::string& name) {
  const std::string rest = name.starts_with(kPrefix) ? name.substr(std::strlen(kPrefix)) : "";
  const std::size_t dash = rest.find('-');
  return dash != std::string::npos && dash > 0 && rest.find_first_not_of("0123456789") == dash;
}

void remove_if_left(const fs::path& path) {
  const Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status{};
  if (!folder || fstat(folder.number(), &status) != 0 || status.st_uid != geteuid()) return;
  const Descriptor lock(openat(folder.number(), kOwnerLock, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!lock) {
    // Its owner was killed between two system calls, or is between them. What is not empty stays.
    if (errno == ENOENT && status.st_mtime < std::time(nullptr) - kJustMadeSeconds) rmdir(path.c_str());
    return;
  }
  if (fstat(lock.number(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (flock(lock.number(), LOCK_EX | LOCK_NB) != 0) return;
  remove_made_folder(folder.number(), path, true);
}

}  // namespace

std::vector<fs::path> scratch_parents() {
  std::error_code ignored;
  const fs::path temporary = fs::temp_directory_path(ignored);  // empty where TMPDIR is no folder
  return {"/dev/shm", temporary.empty() ? "/tmp" : temporary};
}

void remove_leftovers(const fs::path& parent) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    if (is_scratch_name(entry.path().filename().string())) remove_if_left(entry.path());
  }
}

Scratch::Scratch(std::int64_t bytes_needed) {
  const std::vector<fs::path> parents = scratch_parents();
  for (const fs::path& parent : parents) remove_leftovers(parent);
  std::error_code ignored;
  const fs::space_info memory = fs::space(parents.front(), ignored);
  const bool fits =
      !ignored && static_cast<double>(memory.available) > 1.2 * static_cast<double>(bytes_needed);
  if ((fits && make(parents.front())) || make(parents.back())) return;
  throw OutputError(fmt::format("{}: no temporary folder can be made there: {}", parents.back().string(),
                                std::strerror(errno)));
}

bool Scratch::make(const fs::path& parent) {
  // Another program may take a folder whose lock is not held yet for a leftover; then the next one is made.
  for (int attempt = 0; attempt < 10; ++attempt) {
    std::string name = (parent / fmt::format("{}{}-XXXXXX", kPrefix, getpid())).string();
    if (mkdtemp(name.data()) == nullptr) return false;
    Descriptor lock(open((fs::path(name) / kOwnerLock).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    struct stat status{};
    const bool taken = lock && flock(lock.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    const bool removed = lock ? fstat(lock.number(), &status) == 0 && status.st_nlink == 0 : errno == ENOENT;
    if (taken || removed) continue;
    lock_ = std::move(lock);
    folder_ = MadeFolder(name);
    interruption::add_path(folder());
    return true;
  }
  return false;
}

Scratch::~Scratch() {
  const fs::path path = folder();
  folder_ = MadeFolder();
  interruption::drop_path(path);
}

}  // namespace headroom
