// A seed for random data: another one every run, shown when a test fails. HEADROOM_TEST_SEED gives one again.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace headroom {

inline std::uint64_t fresh_seed() {
  const char* given = std::getenv("HEADROOM_TEST_SEED");
  return given == nullptr ? std::random_device{}() : std::strtoull(given, nullptr, 10);
}

}  // namespace headroom
