// One run at a time on a device: two disturb each other's times.
//
// An advisory lock on a file in /tmp that is named by the device; the kernel drops it when the process ends. The file
// stays, readable by all users, whatever the umask of the one who made it: to read is enough to lock.
#pragma once

#include <filesystem>
#include <string>

#include "worker/descriptor.h"

namespace headroom {

class DeviceLock {
 public:
  /// True if this process holds the lock of `device` now; false if another one does. Throws InputError that names the
  /// file if there is no telling: where it cannot be made or opened, or is something else than a file.
  bool try_acquire(const std::string& device, const std::filesystem::path& folder = "/tmp");

 private:
  Descriptor descriptor_;
};

}  // namespace headroom
