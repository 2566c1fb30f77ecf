#include "analysis/gpu_state.h"

#include <algorithm>

namespace headroom {

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
    if (!block.gpu || !block.gpu->throttle_reasons) continue;
    if (!reasons) reasons.emplace();
    for (const std::string& reason : *block.gpu->throttle_reasons) {
      if (is_slowdown(reason) && std::find(reasons->begin(), reasons->end(), reason) == reasons->end())
        reasons->push_back(reason);
    }
  }
  return reasons;
}

std::string slowdown_message(const std::vector<Block>& blocks) {
  const auto reasons = slowdown_reasons(blocks);
  if (!reasons || reasons->empty()) return {};
  const auto slow = std::count_if(blocks.begin(), blocks.end(), [](const Block& block) {
    return block.gpu && block.gpu->throttle_reasons &&
           std::any_of(block.gpu->throttle_reasons->begin(), block.gpu->throttle_reasons->end(),
                       [](const std::string& reason) { return is_slowdown(reason); });
  });
  std::string text =
      "slowed down in " + std::to_string(slow) + " of " + std::to_string(blocks.size()) + " blocks: ";
  for (std::size_t i = 0; i < reasons->size(); ++i) text += (i == 0 ? "" : ", ") + (*reasons)[i];
  return text;
}

}  // namespace headroom
