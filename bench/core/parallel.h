// One loop over all cores, for generating data and for the oracle.
//
// Chunks have a fixed size and are independent of the number of threads, so a result never depends on the
// machine as long as every chunk writes only its own elements.
#pragma once

#include <cstdint>
#include <functional>

namespace headroom {

/// Calls `body(begin, end)` for consecutive chunks of at most `chunk` of [0, count), on all cores, and
/// returns when all are done. The first exception of a chunk is thrown again here. Calls from inside a body
/// run in line; those of several threads wait for each other.
void parallel_for(std::int64_t count, std::int64_t chunk,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

/// Number of threads that parallel_for() uses; 0 in set_parallel_threads() means one per core.
int parallel_threads();
void set_parallel_threads(int threads);

}  // namespace headroom
