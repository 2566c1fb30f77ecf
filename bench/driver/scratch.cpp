#include "driver/scratch.h"

#include <fmt/core.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "driver/interruption.h"

namespace headroom {

namespace fs = std::filesystem;

Scratch::Scratch(std::int64_t bytes_needed) {
  std::error_code ignored;
  std::vector<fs::path> parents;
  const fs::space_info memory = fs::space("/dev/shm", ignored);
  if (!ignored && static_cast<double>(memory.available) > 1.2 * static_cast<double>(bytes_needed)) {
    parents.push_back("/dev/shm");
  }
  parents.push_back(fs::temp_directory_path(ignored));
  for (const fs::path& parent : parents) {
    // The process number tells an owner from a leftover.
    std::string name = (parent / fmt::format("headroom-{}-XXXXXX", getpid())).string();
    if (mkdtemp(name.data()) == nullptr) continue;
    folder_ = name;
    interruption::add_folder(folder_);
    return;
  }
  throw std::runtime_error(fmt::format("{}: no temporary folder can be made there: {}",
                                       parents.back().string(), std::strerror(errno)));
}

Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  interruption::drop_folder(folder_);
}

}  // namespace headroom
