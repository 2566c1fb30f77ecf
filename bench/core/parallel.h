// One loop over all cores, for generating data and for the oracle.
//
// Chunks have a fixed size and are independent of the number of threads, so a result never depends on the
// machine as long as every chunk writes only its own elements.
#pragma once

#include <cstdint>
#include <functional>

namespace headroom {

/// What parallel_for() does where there are several chunks.
void parallel_chunks(std::int64_t count, std::int64_t chunk,
                     const std::function<void(std::int64_t begin, std::int64_t end)>& body);

/// Calls `body(begin, end)` for consecutive chunks of at most `chunk` of [0, count), on all cores, and
/// returns when all are done. The first exception of a chunk is thrown again here. Calls from inside a body
/// run in line; those of several threads wait for each other.
template <typename Body>
void parallel_for(std::int64_t count, std::int64_t chunk, const Body& body) {
  if (count <= 0) return;
  if (count <= chunk)
    body(std::int64_t{0},
         count);  // as most loops of a small network, which take no longer than to ask threads
  else
    parallel_chunks(count, chunk, std::cref(body));
}

/// Number of threads that parallel_for() uses; 0 in set_parallel_threads() means one per core.
int parallel_threads();
void set_parallel_threads(int threads);

}  // namespace headroom
