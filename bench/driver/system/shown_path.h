// Paths as messages name them.
#pragma once

#include <filesystem>
#include <string>

namespace headroom {

/// A path as the user would type it here: relative if it lies below the current folder.
std::string shown(const std::filesystem::path& path);

}  // namespace headroom
