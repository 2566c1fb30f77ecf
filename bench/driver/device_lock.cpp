#include "driver/device_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace headroom {

DeviceLock::~DeviceLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

bool DeviceLock::try_acquire(const std::string& device, const std::filesystem::path& folder) {
  std::string name = "headroom-";
  for (const char c : device) name += (std::isalnum(static_cast<unsigned char>(c)) || c == '-') ? c : '_';
  const std::filesystem::path file = folder / (name + ".lock");
  if (descriptor_ < 0) {
    // Another user's file can be opened for reading only, and that is enough for flock.
    descriptor_ = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor_ < 0) descriptor_ = open(file.c_str(), O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor_ < 0) descriptor_ = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor_ < 0) return true;  // no folder for locks: nothing to hold on to
  }
  return flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
}

}  // namespace headroom
