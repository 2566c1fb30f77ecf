#include "driver/system/json_file.h"

#include <fmt/core.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "json/reader.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

// How many bytes at `place` are a control character, or one that XML does not allow; 0 if it is none.
std::size_t control_bytes(const std::string& text, std::size_t place) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  const unsigned char first = byte(place);
  if (first < 0x20 || first == 0x7f) return 1;
  if (first == 0xc2 && byte(place + 1) < 0xa0) return 2;                              // U+0080 to U+009F
  if (first == 0xef && byte(place + 1) == 0xbf && byte(place + 2) >= 0xbe) return 3;  // U+FFFE, U+FFFF
  return 0;
}

// A terminal obeys escape sequences, and no XML may hold them.
std::string without_controls(const std::string& text) {
  std::string clean;
  for (std::size_t place = 0; place < text.size();) {
    const std::size_t count = control_bytes(text, place);
    if (count == 0) {
      clean += text[place++];
      continue;
    }
    const char found = text[place];
    clean += found == '\n' || found == '\r' || found == '\t' ? " " : "\ufffd";
    place += count;
  }
  return clean;
}

void clean(json& value, const std::string& file) {
  if (value.is_string()) value = without_controls(value.get_ref<const std::string&>());
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      if (without_controls(key) != key)
        throw InputError(fmt::format("{}: key {} holds a control character", file, shown_value(key)));
    }
  }
  if (value.is_structured()) {
    for (json& member : value) clean(member, file);
  }
}

}  // namespace

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::error_code ignored;
  if (!stream || fs::is_directory(file, ignored))
    throw InputError(fmt::format("{}: cannot be read", file.string()));
  const std::string too_large = fmt::format("{}: is larger than {} bytes", file.string(), kMostBytes);
  if (const std::uintmax_t size = fs::file_size(file, ignored); !ignored && size > kMostBytes)
    throw InputError(too_large);
  std::string text;
  for (std::string part(std::size_t{1} << 20, '\0'); stream;) {
    stream.read(part.data(), static_cast<std::streamsize>(part.size()));
    text.append(part, 0, static_cast<std::size_t>(stream.gcount()));
    if (text.size() > kMostBytes) throw InputError(too_large);  // a pipe has no size
  }
  if (stream.bad()) throw InputError(fmt::format("{}: cannot be read", file.string()));
  return text;
}

json json_of(const std::string& text, const fs::path& file, const std::string& what) {
  try {
    json parsed = parse_json(text, /*unique_keys=*/true);
    clean(parsed, file.string());
    return parsed;
  } catch (const JsonSyntaxError& error) {
    throw InputError(fmt::format("{}: expected {}, found {}", file.string(), what, error.what()));
  } catch (const JsonError& error) {
    throw InputError(fmt::format("{}: {}", file.string(), without_controls(error.what())));
  }
}

json read_json(const fs::path& file, const std::string& what) { return json_of(read_text(file), file, what); }

}  // namespace headroom
