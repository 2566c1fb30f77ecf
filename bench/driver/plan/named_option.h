// An option whose value is one of a few words.
#pragma once

#include <fmt/core.h>

#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/workload.h"

namespace headroom {

/// What `text` stands for. Throws InputError with the nearest word: "--format cvs: unknown; did you mean 'csv'?"
template <typename Value>
Value parse_named(const std::string& option, const std::string& text,
                  const std::map<std::string, Value>& values) {
  if (const auto found = values.find(text); found != values.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  throw InputError(
      fmt::format("{} {}: unknown; did you mean '{}'?", option, text, nearest_name(text, names)));
}

}  // namespace headroom
