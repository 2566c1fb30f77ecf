// Whether tests leave steps and repetitions out: on the GPU that the CPU plays, where a step takes up to seconds. Nothing is left
// out on a GPU, or with `./headroom test --all`, which sets HEADROOM_TEST_ALL.
#pragma once

#include <cstdlib>
#include <string_view>

namespace headroom {

inline bool is_shortened() {
#ifdef HEADROOM_EMULATED
  const char* all = std::getenv("HEADROOM_TEST_ALL");
  return all == nullptr || std::string_view(all) != "1";
#else
  return false;
#endif
}

}  // namespace headroom
