// What a wait that ran out says, in one word. Of several the least is the one that the others wait for: no task before it, in the order
// of the steps and of a step's tasks, waits for anything.
#pragma once

#include <cstdint>

#include "tiled/plan.h"

namespace headroom::tiled {

enum class WaitFor : std::uint64_t { kRows = 1, kColumns, kFreeStage, kFullStage, kTurn, kOutputs, kParts };

TILED_BOTH std::uint64_t wait_report(int step_of_launch, int order, WaitFor what) {
  return static_cast<std::uint64_t>(step_of_launch) << 40 | static_cast<std::uint64_t>(order) << 8 |
         static_cast<std::uint64_t>(what);
}
constexpr int step_of(std::uint64_t report) { return static_cast<int>(report >> 40); }
constexpr int order_of(std::uint64_t report) { return static_cast<int>(report >> 8 & 0xffffffff); }
constexpr WaitFor what_of(std::uint64_t report) { return static_cast<WaitFor>(report & 0xff); }

}  // namespace headroom::tiled
