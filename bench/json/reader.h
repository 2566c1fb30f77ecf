// JSON that somebody else has written, read with care: every complaint says where in it something is wrong.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headroom {

/// What is wrong, and where: `workloads[0].widths: expected a list, found 3`.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Text that is no JSON, or JSON that nobody should walk through. It has no place in the document.
class JsonSyntaxError : public JsonError {
 public:
  JsonSyntaxError(const std::string& what, bool too_deep) : JsonError(what), too_deep_(too_deep) {}
  bool too_deep() const { return too_deep_; }

 private:
  bool too_deep_;
};

/// Throws JsonSyntaxError, also for brackets more than 64 deep: whatever walks the values afterwards recurses. With
/// `unique_keys` it throws JsonError for a key that is there twice in one object; else the last one counts.
nlohmann::json parse_json(std::string_view text, bool unique_keys);

/// For complaints: the value as JSON in at most `longest` characters of ASCII.
std::string shown_value(const nlohmann::json& value, std::size_t longest = 40);

/// A value of a document, and where it stands in it. What it is asked for and is not it refuses with JsonError. The document
/// outlives it.
class JsonReader {
 public:
  /// The largest whole number that every program which reads JSON keeps whole.
  static constexpr std::int64_t kLargest = (std::int64_t{1} << 53) - 1;

  /// `where`: what stands before the path of a complaint, such as a file's name; may be empty.
  explicit JsonReader(const nlohmann::json& value, std::string where = "")
      : value_(&value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_expected(const std::string& expected) const;  ///< adds what was found

  // Of an object.
  const JsonReader& object() const;  ///< itself
  bool has(const std::string& key) const;
  JsonReader at(const std::string& key) const;
  /// Null and what is missing are alike.
  std::optional<JsonReader> find(const std::string& key) const;
  std::vector<std::pair<std::string, JsonReader>> members() const;

  // Of a list.
  std::vector<JsonReader> items() const;
  std::vector<JsonReader> items_not_empty() const;

  bool is_null() const;
  bool is_string() const;
  bool is_object() const;
  bool is_list() const;
  bool boolean() const;
  std::string string() const;
  double number() const;
  /// Also finite.
  double number(double least, double most) const;
  std::int64_t integer(std::int64_t least, std::int64_t most = kLargest) const;
  std::uint64_t seed() const;
  /// The one of `values` that to_string() calls so.
  template <typename T>
  T one_of(std::span<const T> values, bool or_null = false) const {
    const std::string name = string();
    std::vector<std::string> names;
    for (const T value : values) {
      if (to_string(value) == name) return value;
      names.emplace_back(to_string(value));
    }
    if (or_null) names.emplace_back("null");
    fail_expected(joined_with_or(names));
  }
  template <typename T, std::size_t N>
  T one_of(const std::array<T, N>& values) const {
    return one_of(std::span<const T>(values));
  }
  template <typename T>
  T one_of(std::initializer_list<T> values, bool or_null = false) const {
    return one_of(std::span<const T>(values.begin(), values.size()), or_null);
  }

 private:
  static std::string joined_with_or(const std::vector<std::string>& names);
  std::string where_of(const std::string& key) const { return where_.empty() ? key : where_ + "." + key; }

  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace headroom
