#include "jit/kept_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <utility>

namespace headroom::jit {
namespace {

namespace fs = std::filesystem;

/// A file that somebody has made larger is not read.
constexpr off_t kMostBytes = off_t{1} << 28;
/// What a process that was killed has left is removed after so long.
constexpr std::time_t kStaleSeconds = 3600;
constexpr std::string_view kUnfinished = ".unfinished-";

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return value_; }
  explicit operator bool() const { return value_ >= 0; }

 private:
  int value_;
};

/// Whether it is this user's and nobody else may write to it.
bool is_own(const struct stat& status) {
  return status.st_uid == geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/// Everything else goes by this descriptor, so that the folder that was looked at is the one that is used.
Descriptor open_folder(const fs::path& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

Descriptor open_own_folder(const fs::path& path) {
  Descriptor folder = open_folder(path);
  struct stat status;
  if (folder && (fstat(folder.get(), &status) != 0 || !is_own(status))) return Descriptor(-1);
  return folder;
}

std::optional<std::string> read_whole(const Descriptor& file) {
  struct stat status;
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || !is_own(status) ||
      status.st_size > kMostBytes)
    return std::nullopt;
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t got = ::read(file.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<std::size_t>(got);
  }
  return text;
}

bool write_whole(const Descriptor& file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return fsync(file.get()) == 0;
}

/// Calls visit(name) for each entry.
template <class Visit>
void visit_entries(const Descriptor& folder, const Visit& visit) {
  // A descriptor of its own: reading a folder moves its place.
  const int own = ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = own < 0 ? nullptr : fdopendir(own);
  if (entries == nullptr) {
    if (own >= 0) ::close(own);
    return;
  }
  while (const dirent* const entry = readdir(entries)) visit(entry->d_name);
  closedir(entries);
}

void remove_stale(const Descriptor& folder) {
  visit_entries(folder, [&](const char* name) {
    struct stat status;
    if (std::string_view(name).starts_with(kUnfinished) &&
        fstatat(folder.get(), name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        std::time(nullptr) - status.st_mtime > kStaleSeconds)
      unlinkat(folder.get(), name, 0);
  });
}

std::optional<std::string> read_file(const Descriptor& folder, const char* name) {
  // A FIFO in its place must not hold us up.
  const Descriptor file(::openat(folder.get(), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return file ? read_whole(file) : std::nullopt;
}

}  // namespace

std::optional<std::string> KeptFiles::find(const std::string& name) const {
  if (folder_.empty()) return std::nullopt;
  const Descriptor folder = open_own_folder(folder_);
  return folder ? read_file(folder, name.c_str()) : std::nullopt;
}

std::vector<std::string> KeptFiles::names() const {
  std::vector<std::string> names;
  if (folder_.empty()) return names;
  if (const Descriptor folder = open_own_folder(folder_))
    visit_entries(folder, [&](const char* name) { names.emplace_back(name); });
  return names;
}

bool KeptFiles::keep(const std::string& name, std::string_view text) const {
  if (folder_.empty()) return false;
  std::error_code ignored;
  fs::create_directories(folder_.parent_path(), ignored);
  (void)::mkdir(folder_.c_str(), 0700);
  const Descriptor folder = open_own_folder(folder_);
  if (!folder) return false;
  static std::atomic<int> count = 0;
  const std::string unfinished =
      std::string(kUnfinished) + std::to_string(getpid()) + "-" + std::to_string(count++);
  remove_stale(folder);
  (void)unlinkat(folder.get(), unfinished.c_str(), 0);  // of an earlier process of this number
  bool is_kept = false;
  {
    const Descriptor file(::openat(folder.get(), unfinished.c_str(),
                                   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) return false;
    is_kept = write_whole(file, text) &&
              renameat(folder.get(), unfinished.c_str(), folder.get(), name.c_str()) == 0;
  }
  if (!is_kept) (void)unlinkat(folder.get(), unfinished.c_str(), 0);
  return is_kept;
}

std::optional<std::string> KeptFiles::refusal() const {
  struct stat status;
  if (folder_.empty()) return "no folder is named";
  if (lstat(folder_.c_str(), &status) != 0) return std::nullopt;
  const std::string name = folder_.string();
  if (S_ISLNK(status.st_mode)) return name + " is a link";
  if (!S_ISDIR(status.st_mode)) return name + " is no folder";
  if (status.st_uid != geteuid()) return name + " is another user's";
  if (!is_own(status)) return name + " may be written by others";
  return std::nullopt;
}

}  // namespace headroom::jit
