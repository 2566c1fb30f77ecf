// What the state of the GPU during the blocks says about a record. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/record.h"

namespace headroom {

/// Whether the hardware or heat holds the clocks down. A power cap does not count: it is how a GPU runs under load.
bool is_slowdown(std::string_view throttle_reason);

/// Reasons seen in any block, each once; nullopt if no block says.
std::optional<std::vector<std::string>> slowdown_reasons(const std::vector<Block>& blocks);

/// "slowed down in 3 of 12 blocks: hardware_slowdown, ..."; empty if it was not, or if that is not known.
std::string slowdown_message(const std::vector<Block>& blocks);

}  // namespace headroom
