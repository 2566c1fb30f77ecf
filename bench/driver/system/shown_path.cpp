#include "driver/system/shown_path.h"

#include <system_error>

namespace headroom {

namespace fs = std::filesystem;

std::string shown(const fs::path& path) {
  // A working folder may go while the program runs.
  std::error_code error;
  const fs::path relative = path.lexically_proximate(fs::current_path(error));
  return error || relative.empty() || *relative.begin() == ".." ? path.string() : relative.string();
}

}  // namespace headroom
