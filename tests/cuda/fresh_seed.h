// A seed for random data: another one every run, shown when a test fails.
#pragma once

#include <cstdint>
#include <random>

namespace headroom {

inline std::uint64_t fresh_seed() { return std::random_device{}(); }

}  // namespace headroom
