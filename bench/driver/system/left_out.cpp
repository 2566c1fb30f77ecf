#include "driver/system/left_out.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "worker/environment.h"

namespace headroom {
namespace {

constexpr std::string_view kPrefix = "BENCHMARK_";
constexpr const char* kTakenOut = "HEADROOM_BENCHMARK_VARIABLES";  // from the program to itself
std::string taken_out;

}  // namespace

void begin_without_benchmark_variables(char** argv) {
  if (const char* before = std::getenv(kTakenOut)) taken_out = before;
  unsetenv(kTakenOut);
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with(kPrefix)) names.emplace_back(text.substr(0, text.find('=')));
  }
  if (names.empty()) return;
  for (const std::string& name : names) unsetenv(name.c_str());
  setenv(kTakenOut, fmt::format("{}", fmt::join(names, ", ")).c_str(), 1);
  execv("/proc/self/exe", argv);
  throw InputError(
      fmt::format("{}: Google Benchmark would read it; unset it ({})", names.front(), std::strerror(errno)));
}

std::string left_out_text() {
  std::string names = fmt::format("{}", fmt::join(left_out_names(), ", "));
  if (!taken_out.empty()) names = taken_out + (names.empty() ? "" : ", ") + names;
  return names.empty() ? "" : fmt::format("Left out of the workers' environment: {}.", names);
}

}  // namespace headroom
