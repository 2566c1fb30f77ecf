// A number that a variable of the environment gives; -1: it is not set.
#pragma once

#include <cstdlib>

namespace headroom {

inline int number_of_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? -1 : std::atoi(value);
}

}  // namespace headroom
