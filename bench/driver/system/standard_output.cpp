#include "driver/system/standard_output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/names.h"

namespace headroom {

void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest free number is this stream's. Output goes where it still fails, so that its loss is noticed.
    [[maybe_unused]] const int opened = open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void print(const std::string& unchecked) {
  const std::string text = printable(unchecked);
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data() + written, text.size() - written);
    if (count >= 0) {
      written += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      pollfd writable{STDOUT_FILENO, POLLOUT, 0};
      poll(&writable, 1, -1);
    } else if (errno == EPIPE) {
      return;
    } else if (errno != EINTR) {
      throw OutputError(fmt::format("standard output: cannot be written: {}",
                                    errno == EBADF ? "it is closed" : std::strerror(errno)));
    }
  }
}

}  // namespace headroom
