// The program's version, and which commit of it this is.
#pragma once

#include <filesystem>
#include <string>

namespace headroom {

/// "0.2.0": what project() in CMakeLists.txt says.
extern const char* const kVersion;

/// "0.2.0 (commit 0123456789, clean)", "... , with changes)" where tracked files differ from it, "(no commit is known)" outside
/// of a checkout.
std::string version_text(const std::filesystem::path& root);

}  // namespace headroom
