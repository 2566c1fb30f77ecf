#include "driver/system/host.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>

namespace headroom {
namespace {

// Value of the first line `key ... : value` or `key=value` of a file.
std::optional<std::string> value_in(const char* file, const std::string& key, char separator) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    std::string value = line.substr(at + 1);
    value.erase(0, value.find_first_not_of(" \t\""));
    value.erase(value.find_last_not_of(" \t\"") + 1);
    if (!value.empty()) return value;
  }
  return std::nullopt;
}

std::string utc(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  std::strftime(text, sizeof text, format, &parts);
  return text;
}

}  // namespace

HostInfo describe_host() {
  HostInfo host;
  host.cpu = value_in("/proc/cpuinfo", "model name", ':');
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) host.cores = CPU_COUNT(&allowed);
  host.os = value_in("/etc/os-release", "PRETTY_NAME", '=');
  utsname system{};
  if (uname(&system) == 0) host.kernel = system.release;
  const long pages = sysconf(_SC_PHYS_PAGES);
  if (pages > 0) host.memory_bytes = static_cast<std::int64_t>(pages) * sysconf(_SC_PAGESIZE);
  return host;
}

std::string utc_now() { return utc("%Y-%m-%dT%H:%M:%SZ"); }
std::string utc_for_name() { return utc("%Y%m%dT%H%M%SZ"); }

}  // namespace headroom
