// What is not known, in JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

/// Null is what is not known.
template <typename T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(auto& value, const std::optional<T>& known) {
    value = nullptr;
    if (known) value = *known;
  }
  static void from_json(const auto& value, std::optional<T>& known) {
    known = value.is_null() ? std::nullopt : std::optional<T>(value.template get<T>());
  }
};
