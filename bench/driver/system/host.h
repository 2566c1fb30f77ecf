// What is recorded about where a run took place, and when. The machine's name is not stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace headroom {

struct HostInfo {
  std::optional<std::string> cpu, os, kernel;
  std::optional<std::int64_t> cores, memory_bytes;
};

HostInfo describe_host();

std::string utc_now();       ///< "2026-11-20T08:15:00Z"
std::string utc_for_name();  ///< "20261120T081500Z"

}  // namespace headroom
