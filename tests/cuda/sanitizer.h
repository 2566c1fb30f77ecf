// What a test may leave out under compute-sanitizer's racecheck, where a launch takes 20 ms and a step of a kernel
// that stays on the chip seconds. `./headroom test --gpu --sanitize` names the tool in HEADROOM_SANITIZER.
#pragma once

#include <cstdlib>
#include <string_view>

namespace headroom {

inline bool under_sanitizer() { return std::getenv("HEADROOM_SANITIZER") != nullptr; }
inline bool under_racecheck() {
  const char* tool = std::getenv("HEADROOM_SANITIZER");
  return tool != nullptr && std::string_view(tool) == "racecheck";
}

}  // namespace headroom
