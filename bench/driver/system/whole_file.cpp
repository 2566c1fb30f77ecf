#include "driver/system/whole_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "driver/system/interruption.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryName = ".headroom-";
constexpr std::size_t kDigits = 8;

[[noreturn]] void throw_errno() { throw std::system_error(errno, std::generic_category()); }

[[noreturn]] void refuse(const fs::path& file, const std::system_error& error) {
  throw OutputError(
      fmt::format("{}: cannot be written: {}", file.string(), std::strerror(error.code().value())));
}

fs::path folder_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : "."; }

enum class Lock { kTaken, kHeldByAnother, kNotSupported };

Lock try_lock(const Descriptor& descriptor) {
  while (flock(descriptor.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return Lock::kHeldByAnother;
    // Some network file systems have no locks. The name is still taken by one run alone.
    if (errno != EINTR) return Lock::kNotSupported;
  }
  return Lock::kTaken;
}

bool is_same_file(const Descriptor& descriptor, const fs::path& name) {
  struct stat held{}, named{};
  return fstat(descriptor.number(), &held) == 0 && stat(name.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

/// A new file of a name that nobody looks for, locked. Gone with this object unless it was given another name.
class Temporary {
 public:
  /// Throws std::system_error, as all of its functions do.
  explicit Temporary(const fs::path& folder) {
    std::random_device random;
    while (true) {
      name_ = folder / fmt::format("{}{:0{}x}", kTemporaryName, random() & 0xffffffffu, kDigits);
      descriptor_ = Descriptor(open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (!descriptor_ && errno == EEXIST) continue;
      if (!descriptor_) throw_errno();
      // Another run may have taken it for a leftover before it was locked.
      if (try_lock(descriptor_) != Lock::kHeldByAnother && is_same_file(descriptor_, name_)) return;
    }
  }
  ~Temporary() {
    if (!renamed_) unlink(name_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void fill(const std::string& text) {
    std::size_t written = 0;
    while (written < text.size()) {
      const ssize_t count = ::write(descriptor_.number(), text.data() + written, text.size() - written);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_errno();
      written += static_cast<std::size_t>(count);
    }
    if (fsync(descriptor_.number()) != 0 && errno != EINVAL) throw_errno();
  }
  /// With the mode of the file that it replaces, if there is one.
  void replace(const fs::path& file) {
    struct stat before{};
    // Where a file system has no modes the text matters more.
    if (stat(file.c_str(), &before) == 0 && fchmod(descriptor_.number(), before.st_mode & 07777) != 0)
      errno = 0;
    if (rename(name_.c_str(), file.c_str()) != 0) throw_errno();
    renamed_ = true;
  }
  /// False if there is something of that name.
  bool take_new_name(const fs::path& file) {
    if (link(name_.c_str(), file.c_str()) == 0) return true;  // the first name goes with this object
    if (errno == EEXIST) return false;
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS && errno != EMLINK) throw_errno();
    // A file system without links: the name is there first, the text an instant later.
    const Descriptor made(open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!made && errno == EEXIST) return false;
    if (!made) throw_errno();
    replace(file);
    return true;
  }
  /// The descriptor, which goes on holding the lock.
  Descriptor release() { return std::move(descriptor_); }

 private:
  fs::path name_;
  Descriptor descriptor_;
  bool renamed_ = false;
};

// What a run that was killed while it wrote has left there.
void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kTemporaryName) || name.size() != kTemporaryName.size() + kDigits ||
        name.find_first_not_of("0123456789abcdef", kTemporaryName.size()) != std::string::npos)
      continue;
    const Descriptor descriptor(open(entry.path().c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!descriptor) continue;
    struct stat status{};
    // One that has its right name too needs this one no more, whoever holds it.
    if (fstat(descriptor.number(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
        (status.st_nlink > 1 || try_lock(descriptor) == Lock::kTaken))
      unlink(entry.path().c_str());
  }
}

}  // namespace

void write_whole(const std::string& text, const fs::path& file) {
  try {
    std::error_code error;
    const fs::path target = fs::is_symlink(file, error) ? fs::weakly_canonical(file) : file;
    Temporary temporary(folder_of(target));
    temporary.fill(text);
    temporary.replace(target);
  } catch (const std::system_error& error) {
    refuse(file, error);
  }
}

void check_writable(const fs::path& file) {
  try {
    const Temporary probe(folder_of(file));
  } catch (const std::system_error& error) {
    refuse(file, error);
  }
}

bool is_stream(const fs::path& file) {
  std::error_code error;
  const std::string name = fs::absolute(file, error).lexically_normal().string();
  return (name.starts_with("/dev/") && !name.starts_with("/dev/shm/")) || name.starts_with("/proc/") ||
         (fs::exists(file, error) && !fs::is_regular_file(file, error));
}

ReservedFile::~ReservedFile() {
  if (only_reserved_) {
    if (is_same_file(descriptor_, target_)) unlink(target_.c_str());
    interruption::drop_path(target_);
  }
}

bool ReservedFile::create(const fs::path& file, const std::string& text) {
  try {
    fs::create_directories(folder_of(file));
    remove_leftovers(folder_of(file));
    Temporary temporary(folder_of(file));
    temporary.fill(text);
    if (!temporary.take_new_name(file)) return false;
    descriptor_ = temporary.release();
  } catch (const std::system_error& error) {
    refuse(file, error);
  }
  path_ = target_ = file;
  only_reserved_ = true;
  interruption::add_path(target_);
  return true;
}

void ReservedFile::hold(const fs::path& file) {
  std::error_code error;
  const fs::path target = fs::canonical(file, error);
  if (error) throw InputError(fmt::format("{}: cannot be read: {}", file.string(), error.message()));
  if (!fs::is_regular_file(target, error))
    throw InputError(fmt::format("{}: expected a results file, found something else", file.string()));
  while (true) {
    Descriptor descriptor(open(target.c_str(), O_RDWR | O_CLOEXEC));
    if (!descriptor) descriptor = Descriptor(open(target.c_str(), O_RDONLY | O_CLOEXEC));
    if (!descriptor)
      throw InputError(fmt::format("{}: cannot be read: {}", file.string(), std::strerror(errno)));
    if (try_lock(descriptor) == Lock::kHeldByAnother) {
      throw InputError(
          fmt::format("{}: another run is writing it; wait until that has ended, or stop it", file.string()));
    }
    if (is_same_file(descriptor, target)) {
      descriptor_ = std::move(descriptor);
      break;
    }  // else it was replaced meanwhile
  }
  path_ = file;
  target_ = target;
  remove_leftovers(folder_of(target));
  check_writable(target);
}

void ReservedFile::write(const std::string& text) {
  try {
    Temporary temporary(folder_of(target_));
    temporary.fill(text);
    temporary.replace(target_);
    descriptor_ = temporary.release();
  } catch (const std::system_error& error) {
    refuse(path_, error);
  }
  if (std::exchange(only_reserved_, false)) interruption::drop_path(target_);
}

}  // namespace headroom
