#include "json/reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace headroom {
namespace {

using nlohmann::json;

constexpr int kMostDepth = 64;
constexpr std::size_t kLongestShown = 80;

}  // namespace

json parse_json(std::string_view text, bool unique_keys) {
  std::vector<std::set<std::string>> open;  // the keys of the objects around
  const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= kMostDepth)
      throw JsonSyntaxError("brackets more than " + std::to_string(kMostDepth) + " deep", true);
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event == Event::key && !open.back().insert(value.get<std::string>()).second && unique_keys)
      throw JsonError("key '" + value.get<std::string>() + "' is there twice in one object");
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::parse_error& error) {
    const std::size_t end = std::min(text.size(), error.byte);
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    throw JsonSyntaxError("no JSON: something is wrong on line " + std::to_string(line), false);
  } catch (const json::out_of_range&) {
    throw JsonSyntaxError("no JSON: a number is out of range", false);
  }
}

std::string shown_value(const json& value, std::size_t longest) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= longest ? text : text.substr(0, longest - 3) + "...";
}

void JsonReader::fail(const std::string& what) const {
  throw JsonError(where_.empty() ? what : where_ + ": " + what);
}

void JsonReader::fail_expected(const std::string& expected) const {
  fail("expected " + expected + ", found " + shown_value(*value_, kLongestShown));
}

const JsonReader& JsonReader::object() const {
  if (!value_->is_object()) fail_expected("an object");
  return *this;
}

bool JsonReader::has(const std::string& key) const {
  object();
  return value_->contains(key);
}

JsonReader JsonReader::at(const std::string& key) const {
  object();
  const auto found = value_->find(key);
  if (found == value_->end()) throw JsonError(where_of(key) + ": missing");
  return JsonReader(*found, where_of(key));
}

std::optional<JsonReader> JsonReader::find(const std::string& key) const {
  object();
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return JsonReader(*found, where_of(key));
}

std::vector<std::pair<std::string, JsonReader>> JsonReader::members() const {
  object();
  std::vector<std::pair<std::string, JsonReader>> members;
  for (const auto& [key, value] : value_->items())
    members.emplace_back(key, JsonReader(value, where_of(key)));
  return members;
}

std::vector<JsonReader> JsonReader::items() const {
  if (!value_->is_array()) fail_expected("a list");
  std::vector<JsonReader> items;
  for (const json& value : *value_)
    items.emplace_back(value, where_ + "[" + std::to_string(items.size()) + "]");
  return items;
}

std::vector<JsonReader> JsonReader::items_not_empty() const {
  if (!value_->is_array() || value_->empty()) fail_expected("a list that is not empty");
  return items();
}

bool JsonReader::is_null() const { return value_->is_null(); }
bool JsonReader::is_string() const { return value_->is_string(); }
bool JsonReader::is_list() const { return value_->is_array(); }
bool JsonReader::is_object() const { return value_->is_object(); }

bool JsonReader::boolean() const {
  if (!value_->is_boolean()) fail_expected("true or false");
  return value_->get<bool>();
}

std::string JsonReader::string() const {
  if (!value_->is_string()) fail_expected("a string");
  return value_->get<std::string>();
}

double JsonReader::number() const {
  if (!value_->is_number()) fail_expected("a number");
  return value_->get<double>();
}

double JsonReader::number(double least, double most) const {
  const double found = number();
  if (!std::isfinite(found) || !(found >= least)) fail_expected("a finite number, not negative");
  if (found > most) fail(value_->dump() + " is out of range");
  return found;
}

std::int64_t JsonReader::integer(std::int64_t least, std::int64_t most) const {
  const bool whole = value_->is_number_unsigned()
                         ? value_->get<std::uint64_t>() <= static_cast<std::uint64_t>(kLargest)
                         : value_->is_number_integer();
  if (!whole || value_->get<std::int64_t>() < least || value_->get<std::int64_t>() > most) {
    const std::string range = most == kLargest ? " or more" : " to " + std::to_string(most);
    fail_expected("a whole number, " + std::to_string(least) + range);
  }
  return value_->get<std::int64_t>();
}

std::uint64_t JsonReader::seed() const {
  if (!value_->is_number_unsigned()) fail_expected("a whole number from 0");
  return value_->get<std::uint64_t>();
}

std::string JsonReader::joined_with_or(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

}  // namespace headroom
