#include "jit/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "jit/digest.h"
#include "jit/sources.h"

namespace headroom::jit {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstLine = "headroom cubin 1\n";
constexpr std::size_t kDigestDigits = 64;
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

std::string encode(const Cubin& cubin) {
  std::string body = cubin.kernel + "\n" + cubin.compiler + "\n" + std::to_string(cubin.registers) + " " +
                     std::to_string(cubin.shared_bytes) + " " + std::to_string(cubin.log.size()) + "\n" +
                     cubin.log;
  body.append(cubin.bytes.begin(), cubin.bytes.end());
  return std::string(kFirstLine) + sha256(body) + "\n" + body;
}

std::optional<Cubin> decode(std::string_view file) {
  const auto take = [&](std::size_t count) {
    const std::string_view part = file.substr(0, count);
    file.remove_prefix(part.size());
    return part;
  };
  const auto take_line = [&] {
    const std::string_view line = take(file.find('\n'));
    take(1);
    return line;
  };
  if (take(kFirstLine.size()) != kFirstLine) return std::nullopt;
  const std::string_view digest = take_line();
  if (digest.size() != kDigestDigits || sha256(file) != digest) return std::nullopt;
  // From here on it is what encode() wrote.
  Cubin cubin;
  cubin.kernel = take_line();
  cubin.compiler = take_line();
  std::size_t log_bytes = 0;
  if (std::sscanf(std::string(take_line()).c_str(), "%d %d %zu", &cubin.registers, &cubin.shared_bytes,
                  &log_bytes) != 3)
    return std::nullopt;
  cubin.log = take(log_bytes);
  cubin.bytes.assign(file.begin(), file.end());
  return cubin;
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

constexpr std::string_view kEnding = ".cubin";
std::string file_name(const std::string& key) { return key + std::string(kEnding); }

/// Calls visit(name) for each entry, until it returns true.
template <class Visit>
void visit_entries(const Descriptor& folder, const Visit& visit) {
  // A descriptor of its own: reading a folder moves its place.
  const int own = ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = own < 0 ? nullptr : fdopendir(own);
  if (entries == nullptr) {
    if (own >= 0) ::close(own);
    return;
  }
  while (const dirent* const entry = readdir(entries))
    if (visit(entry->d_name)) break;
  closedir(entries);
}

void remove_stale(const Descriptor& folder) {
  visit_entries(folder, [&](const char* name) {
    struct stat status;
    if (std::string_view(name).starts_with(kUnfinished) &&
        fstatat(folder.get(), name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        std::time(nullptr) - status.st_mtime > kStaleSeconds)
      unlinkat(folder.get(), name, 0);
    return false;
  });
}

std::optional<Cubin> read_cubin(const Descriptor& folder, const char* name) {
  // A FIFO in its place must not hold us up.
  const Descriptor file(::openat(folder.get(), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return std::nullopt;
  const std::optional<std::string> text = read_whole(file);
  return text ? decode(*text) : std::nullopt;
}

}  // namespace

std::optional<Cubin> Cache::find(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  const Descriptor folder = open_own_folder(folder_);
  return folder ? read_cubin(folder, file_name(key).c_str()) : std::nullopt;
}

std::optional<Cubin> Cache::find_of_any_compiler(const std::string& request) const {
  std::optional<Cubin> found;
  if (folder_.empty()) return found;
  const Descriptor folder = open_own_folder(folder_);
  if (!folder) return found;
  visit_entries(folder, [&](const char* name) {
    if (std::string_view(name).starts_with(request + "-") && std::string_view(name).ends_with(kEnding))
      found = read_cubin(folder, name);
    return found.has_value();
  });
  return found;
}

bool Cache::keep(const std::string& key, const Cubin& cubin) const {
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
    is_kept = write_whole(file, encode(cubin)) &&
              renameat(folder.get(), unfinished.c_str(), folder.get(), file_name(key).c_str()) == 0;
  }
  if (!is_kept) (void)unlinkat(folder.get(), unfinished.c_str(), 0);
  return is_kept;
}

std::optional<std::string> Cache::refusal() const {
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

std::string digest_of(const Request& request, const Architecture& architecture) {
  static const std::string sources = [] {
    Digest digest;
    for (const Source& source : embedded_sources()) {
      digest.add(source.name);
      digest.add(source.text);
    }
    return digest.hex();
  }();
  Digest digest;
  digest.add(sources);
  digest.add(architecture.name());
  digest.add(program_text(request));
  digest.add(request.kernel);
  for (const std::string& option : request.options) digest.add(option);
  return digest.hex();
}

std::string key_of(const Request& request, const Architecture& architecture, const Compiler& compiler) {
  return digest_of(request, architecture) + "-" + sha256(compiler.identity());
}

Cubin compile(const Request& request, const Architecture& architecture, const Compiler* compiler,
              const Cache& cache) {
  const auto start = std::chrono::steady_clock::now();
  std::optional<Cubin> kept = compiler == nullptr
                                  ? cache.find_of_any_compiler(digest_of(request, architecture))
                                  : cache.find(key_of(request, architecture, *compiler));
  if (!kept && compiler == nullptr)
    throw UnsupportedError("kernel '" + request.name +
                           "' is not in the cache, and neither nvcc with g++ nor NVRTC is here");
  Cubin cubin = kept ? std::move(*kept) : compiler->compile(request, architecture);
  cubin.was_kept = kept.has_value();
  if (!cubin.was_kept) {
    cubin.compiler = compiler->name();
    (void)cache.keep(key_of(request, architecture, *compiler), cubin);
  }
  cubin.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return cubin;
}

}  // namespace headroom::jit
