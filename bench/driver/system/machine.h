// What is recorded about where a run took place and which sources it measured. The machine's name is not
// stored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace headroom {

struct HostInfo {
  std::optional<std::string> cpu, os, kernel;
  std::optional<std::int64_t> cores, memory_bytes;
};

HostInfo describe_host();

std::string utc_now();       ///< "2026-11-20T08:15:00Z"
std::string utc_for_name();  ///< "20261120T081500Z"

/// Commit and whether tracked files differ from it: those that the record of a build made elsewhere names (the
/// front door passes them as HEADROOM_BUILD_GIT_SHA and HEADROOM_BUILD_GIT_DIRTY), else those of the git checkout;
/// empty outside one.
struct GitState {
  std::optional<std::string> sha;
  std::optional<bool> dirty;
};
GitState git_state(const std::filesystem::path& root);

/// "fnv1a64:" and the FNV-1a 64 hash over path and contents of every source (*.h *.cpp *.cu *.cuh *.py
/// CMakeLists.txt) under bench/, cuda_impl/ and torch_impl/, in order of their paths. nullopt if `root` has
/// no bench/.
std::optional<std::string> source_digest(const std::filesystem::path& root);

/// "fnv1a64:" and the FNV-1a 64 hash of the parts, each ended by a byte that no text holds.
std::string text_digest(const std::vector<std::string>& parts);

/// Paths relative to the root if they are in it, else base names; what is not an absolute path stays as it
/// is.
std::vector<std::string> publishable_argv(const std::vector<std::string>& argv,
                                          const std::filesystem::path& root);

/// How many CUDA devices the driver shows, 0 where there is no driver. Asked in a child process, so that this
/// one never initialises CUDA.
int cuda_device_count();

/// Runs a program without a shell. `output`: its standard output, at most 1 MB. Standard error goes to ours
/// if `show_errors`, else nowhere.
struct ProgramResult {
  int exit_code = -1;  ///< -1: it could not be started, or was ended by a signal or the time limit
  std::string output;
};
ProgramResult run_program(const std::vector<std::string>& arguments, int time_limit_seconds,
                          bool show_errors);

}  // namespace headroom
