// What a user types to call this program, for messages that name a command.
#pragma once

#include <cstdlib>
#include <string>

namespace headroom {

/// The front door hands over how it was called (`./headroom`); without it: `headroom`.
inline std::string command_name() {
  const char* called = std::getenv("HEADROOM_COMMAND");
  return called == nullptr || *called == '\0' ? "headroom" : called;
}

}  // namespace headroom
