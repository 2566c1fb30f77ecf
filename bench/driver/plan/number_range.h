// The range of an option's number, for both commands' parsers.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <string>

namespace headroom {

/// A number from `low` to `high`. CLI::Range lets NaN through.
inline CLI::Validator between(double low, double high) {
  const CLI::Range range(low, high);
  const auto complaint = [=](std::string& text) {
    if (std::isnan(std::strtod(text.c_str(), nullptr)))
      return fmt::format("Value {} not in range {} to {}", text, low, high);
    return range(text);
  };
  return CLI::Validator(complaint, range.get_description(), "");
}

}  // namespace headroom
