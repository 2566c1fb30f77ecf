#include "driver/system/device_lock.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/error.h"

namespace headroom {
namespace {

constexpr mode_t kReadableByAll = 0444;

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& reason) {
  throw InputError(fmt::format("the device's lock {} cannot be taken: {}", file.string(), reason));
}

// The lock file, made if there is none. Neither what a link leads to nor the other end of a pipe is waited for.
Descriptor open_or_make(const std::filesystem::path& file) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  for (int attempt = 0;; ++attempt) {
    // Not made at once: in a folder as /tmp the kernel may refuse that for another user's file, even if it is there.
    Descriptor descriptor(open(file.c_str(), kFlags));
    if (!descriptor && errno == ENOENT)
      descriptor = Descriptor(open(file.c_str(), kFlags | O_CREAT | O_EXCL, kReadableByAll | S_IWUSR));
    if (descriptor) return descriptor;
    if (errno == ELOOP) refuse(file, "it is a symbolic link");
    // Another run may be making it: it is there, and in an instant it can be read.
    if ((errno != EEXIST && errno != EACCES) || attempt == 5) refuse(file, std::strerror(errno));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

bool DeviceLock::try_acquire(const std::string& device, const std::filesystem::path& folder) {
  std::string name = "headroom-";
  for (const char c : device) name += (std::isalnum(static_cast<unsigned char>(c)) || c == '-') ? c : '_';
  const std::filesystem::path file = folder / (name + ".lock");
  if (!descriptor_) {
    descriptor_ = open_or_make(file);
    struct stat status{};
    if (fstat(descriptor_.number(), &status) != 0) refuse(file, std::strerror(errno));
    if (!S_ISREG(status.st_mode)) refuse(file, S_ISDIR(status.st_mode) ? "it is a folder" : "it is no file");
    // The umask may have kept others from reading it.
    if (status.st_uid == geteuid() && (status.st_mode & kReadableByAll) != kReadableByAll)
      fchmod(descriptor_.number(), (status.st_mode & 07777) | kReadableByAll);
  }
  while (flock(descriptor_.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) refuse(file, std::strerror(errno));
  }
  return true;
}

}  // namespace headroom
