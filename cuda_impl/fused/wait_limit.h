// How long a thread waits at a barrier, and how the trainer hears of one that has waited longer (wait.cuh).
#pragma once

#include <cstdint>

namespace headroom::fused {

struct WaitLimit {
  std::uint32_t* status;      ///< 0, or who has waited too long: wait_status()
  std::uint32_t nanoseconds;  ///< from a launch's begin on; kWaitsForEver: no limit
  std::int32_t begin_at;      ///< byte of the block's dynamic shared memory that holds the clock of its begin
  std::int32_t lost;          ///< for tests: a barrier whose first phase is never complete; < 0: none
};
/// The clock is the lower half of 64 bits, so it comes round after 4.3 s.
inline constexpr std::uint32_t kWaitsForEver = 0xffffffffu;
/// At the end of a block's shared memory.
inline constexpr int kWaitBytes = 16;

/// A block, and where in its shared memory the barrier lies, as a status says it in one word.
struct WaitStatus {
  static constexpr int kByteBits = 18;
  std::uint32_t byte, block;
};
inline WaitStatus wait_status(std::uint32_t word) {
  return {.byte = word & ((1u << WaitStatus::kByteBits) - 1), .block = word >> WaitStatus::kByteBits};
}

}  // namespace headroom::fused
