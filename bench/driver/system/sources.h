// Which sources a run measured, and its command line without this machine's paths.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace headroom {

/// Commit and whether tracked files differ from it: those that the record of a build made elsewhere names (the
/// front door passes them as HEADROOM_BUILD_GIT_SHA and HEADROOM_BUILD_GIT_DIRTY), else those of the git checkout;
/// empty outside one.
struct GitState {
  std::optional<std::string> sha;
  std::optional<bool> dirty;
};
GitState git_state(const std::filesystem::path& root);

/// When each of the commits was made, in seconds since 1970, by its full name; without those that the checkout at `root` does not
/// have, and empty where there is no checkout. `commits`: names of hexadecimal digits.
std::map<std::string, std::int64_t> commit_times(const std::filesystem::path& root,
                                                 const std::set<std::string>& commits);

/// "fnv1a64:" and the FNV-1a 64 hash over path and contents of every source (*.h *.cpp *.cu *.cuh *.py
/// CMakeLists.txt) under bench/, cuda_impl/ and torch_impl/ (folders named build left out), in order of their paths. nullopt if `root` has
/// no bench/.
std::optional<std::string> source_digest(const std::filesystem::path& root);

/// FNV-1a, 64 bits, of the bytes behind those that `hash` is of.
std::uint64_t fnv1a64(std::string_view bytes, std::uint64_t hash = 0xcbf29ce484222325u);

/// "fnv1a64:" and the FNV-1a 64 hash of the parts, each ended by a byte that no text holds.
std::string text_digest(const std::vector<std::string>& parts);

/// Paths relative to the root if they are in it, else base names; what is not an absolute path stays as it
/// is.
std::vector<std::string> publishable_argv(const std::vector<std::string>& argv,
                                          const std::filesystem::path& root);

}  // namespace headroom
