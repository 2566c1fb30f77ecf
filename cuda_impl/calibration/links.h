// What it costs two devices to hand each other values: stores of a kernel into the other's memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace headroom::calibration {

/// Why kernels on these devices cannot write to each other's memory; nullopt if they can, and are now allowed to.
std::optional<std::string> no_peer_access(int one, int other);

/// Of all multiprocessors of `from`, 16 bytes a store, into `bytes` of memory of `to`. Bytes per second, fastest of 5.
double link_store_rate(int from, int to, std::int64_t bytes);

/// Seconds of a store into the other device's memory and of the store with which that answers, as soon as it sees the first:
/// one thread on each device, `repeats` in a chain, fastest of 5. Throws std::runtime_error if an answer does not come.
double link_round_trip_seconds(int one, int other, int repeats);

}  // namespace headroom::calibration
