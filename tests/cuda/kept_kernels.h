// Where tests and timing programs keep compiled kernels: a folder that a variable names, so that kernels compiled on a machine without
// a GPU run on one without that compiler. HEADROOM_TEST_CUBINS; not set: nowhere. Test runs on a GPU set it.
#pragma once

#include <cstdlib>
#include <string>

namespace headroom {

inline std::string folder_of_kept_kernels() {
  const char* folder = std::getenv("HEADROOM_TEST_CUBINS");
  return folder == nullptr ? "" : folder;
}

}  // namespace headroom
