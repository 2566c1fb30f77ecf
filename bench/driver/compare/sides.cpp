#include "driver/compare/sides.h"

#include <fmt/core.h>

#include "driver/compare/comparison.h"
#include "driver/system/interruption.h"

namespace headroom {

const char* to_string(Side side) { return side == Side::kBase ? "base" : "head"; }

void start_on_both(SidePools& pools, const std::string& worker) {
  std::vector<WorkerPool*> launched;
  for (WorkerPool& pool : pools) {
    if (pool.launch(worker)) launched.push_back(&pool);
  }
  for (WorkerPool* pool : launched) pool->meet(worker);
  interruption::throw_if_requested();
  for (const Side side : kSides) {
    const Greeting& greeting = pool_of(pools, side).greeting(worker);
    if (greeting.other_protocol)
      throw NotComparableError(fmt::format("{} is not comparable: {}", to_string(side), greeting.problem));
  }
}

void end_on_both(SidePools& pools) {
  // Killed: they have nothing to save, and a CUDA process takes its time to leave.
  for (WorkerPool& pool : pools) pool.kill_all();
  for (WorkerPool& pool : pools) pool.end_all();
}

}  // namespace headroom
