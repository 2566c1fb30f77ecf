#include "worker/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace headroom {

Descriptor open_regular_file(const std::filesystem::path& file, int flags) {
  Descriptor descriptor(::open(file.c_str(), flags | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC, 0666));
  struct stat status{};
  if (!descriptor || (::fstat(descriptor.number(), &status) == 0 && S_ISREG(status.st_mode)))
    return descriptor;
  descriptor.close();
  errno = EINVAL;
  return descriptor;
}

std::string open_failure(int error) {
  return error == EINVAL || error == ELOOP ? "expected a regular file" : std::strerror(error);
}

void remove_unless_regular(const std::filesystem::path& file) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::symlink_status(file, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    std::filesystem::remove_all(file, ignored);
}

}  // namespace headroom
