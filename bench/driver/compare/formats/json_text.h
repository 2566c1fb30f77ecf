// JSON as the formats of a comparison write it.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace headroom {

inline nlohmann::ordered_json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

/// On many lines, for files that people look into. Bytes that are no UTF-8 are replaced.
inline std::string indented(const nlohmann::ordered_json& value) {
  return value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace headroom
