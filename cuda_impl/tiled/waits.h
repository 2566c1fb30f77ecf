// What a wait that ran out says, in one word.
#pragma once

#include <cstdint>

#include "tiled/plan.h"

namespace headroom::tiled {

enum class WaitFor : std::uint64_t { kRows = 1, kColumns, kFreeStage, kFullStage, kTurn, kOutputs };

TILED_BOTH std::uint64_t wait_report(WaitFor what, std::uint32_t block, std::uint32_t task) {
  return static_cast<std::uint64_t>(what) << 56 | std::uint64_t{block} << 32 | task;
}
constexpr WaitFor what_of(std::uint64_t report) { return static_cast<WaitFor>(report >> 56); }
constexpr std::uint32_t block_of(std::uint64_t report) { return report >> 32 & 0xffffff; }
constexpr std::uint32_t task_of(std::uint64_t report) { return static_cast<std::uint32_t>(report); }

}  // namespace headroom::tiled
