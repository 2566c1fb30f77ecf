// Reads JSON files that somebody else may have made: limited in size and depth, and safe to print.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace headroom {

/// The file's bytes. Throws InputError if it cannot be read or is over a gibibyte.
std::string read_text(const std::filesystem::path& file);

/// `what`: what was expected, such as "a results file". Takes a byte order mark; text from the file holds no
/// control characters. Throws InputError for what is not JSON, is nested deeper than 64 or names a key twice.
nlohmann::json json_of(const std::string& text, const std::filesystem::path& file, const std::string& what);
/// The same of the file's own text.
nlohmann::json read_json(const std::filesystem::path& file, const std::string& what);

}  // namespace headroom
