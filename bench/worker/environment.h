// The environment of the workers: the user's, without what would change how a row computes.
//
// A row is what its backend makes of the network, not what a variable of the shell makes of a library: with
// NVIDIA_TF32_OVERRIDE=0 the rivals' tf32 would run in fp32, and our lead would look twice as large as it is.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace headroom {

/// Whether a variable of this name is kept from the workers. Left out is what changes the arithmetic, the kernels, the
/// allocator or the schedule of a library, and what makes Python import something else. What says where things are, which
/// devices are visible and how many threads there are stays, and OPENBLAS_*: some processors need it to compute rightly.
bool is_left_out(std::string_view name);

/// The names in this process's environment that are left out, in alphabetical order.
std::vector<std::string> left_out_names();

/// "NAME=VALUE" of each variable of this process that a worker gets, and of `added`, which takes precedence.
std::vector<std::string> worker_environment(const std::map<std::string, std::string>& added);

}  // namespace headroom
