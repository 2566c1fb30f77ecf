#include "core/names.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/error.h"

namespace headroom {
namespace {

bool is_ascii_word(char character) {
  return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
         (character >= '0' && character <= '9') || character == '_';
}

/// Bytes of the UTF-8 character that `text` begins with; 0 if it begins with none.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xc2 && first < 0xe0 ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // Longer forms of what is shorter, surrogates, and what is above U+10FFFF.
  const bool wrong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
                     (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f);
  return wrong ? 0 : length;
}

bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 2) return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
  return character.size() == 1 && (first < 0x20 || first == 0x7f) && first != '\n';
}

}  // namespace

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName && is_ascii_word(text.front()) &&
         std::all_of(text.begin(), text.end(),
                     [](char one) { return is_ascii_word(one) || one == '.' || one == '-'; });
}

void check_name(const std::string& where, std::string_view name) {
  if (!is_name(name)) throw InputError(where + " '" + std::string(name) + "': expected " + kNameRule);
}

bool is_workload_name(std::string_view text) {
  return is_name(text) && std::none_of(text.begin(), text.end(),
                                       [](char one) { return one == '_' || (one >= 'A' && one <= 'Z'); });
}

std::size_t edit_distance(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);  // of the table, one at a time
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t replaced = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(1, length));
    if (length == 0) {
      shown += '?';
    } else if (is_control(character)) {
      shown += ' ';
    } else {
      shown += character;
    }
    text.remove_prefix(character.size());
  }
  return shown;
}

}  // namespace headroom
