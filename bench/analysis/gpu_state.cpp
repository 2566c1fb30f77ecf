#include "analysis/gpu_state.h"

#include <algorithm>
#include <iterator>

namespace headroom {
namespace {

/// Of all devices of the block; `known` becomes true if any of them says.
std::vector<std::string> reasons_of(const Block& block, bool& known) {
  std::vector<std::string> reasons;
  const auto add = [&](const GpuState& state) {
    if (!state.throttle_reasons) return;
    known = true;
    std::copy_if(state.throttle_reasons->begin(), state.throttle_reasons->end(), std::back_inserter(reasons),
                 is_slowdown);
  };
  if (block.gpu) add(*block.gpu);
  for (const GpuState& peer : block.peer_gpus) add(peer);
  return reasons;
}

}  // namespace

bool is_slowdown(std::string_view throttle_reason) {
  for (const std::string_view reason : {"hardware_slowdown", "hardware_thermal_slowdown",
                                        "hardware_power_brake", "software_thermal_slowdown"}) {
    if (throttle_reason == reason) return true;
  }
  return false;
}

std::optional<std::vector<std::string>> slowdown_reasons(const std::vector<Block>& blocks) {
  std::optional<std::vector<std::string>> reasons;
  for (const Block& block : blocks) {
    bool known = false;
    const std::vector<std::string> seen = reasons_of(block, known);
    if (known && !reasons) reasons.emplace();
    for (const std::string& reason : seen)
      if (std::find(reasons->begin(), reasons->end(), reason) == reasons->end()) reasons->push_back(reason);
  }
  return reasons;
}

std::string slowdown_message(const std::vector<Block>& blocks) {
  const auto reasons = slowdown_reasons(blocks);
  if (!reasons || reasons->empty()) return {};
  const auto slow = std::count_if(blocks.begin(), blocks.end(), [](const Block& block) {
    bool known = false;
    return !reasons_of(block, known).empty();
  });
  std::string text =
      "slowed down in " + std::to_string(slow) + " of " + std::to_string(blocks.size()) + " blocks: ";
  for (std::size_t i = 0; i < reasons->size(); ++i) text += (i == 0 ? "" : ", ") + (*reasons)[i];
  return text;
}

}  // namespace headroom
