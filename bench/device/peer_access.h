// Whether GPUs of one host reach each other's memory.
#pragma once

#include <vector>

namespace headroom {

/// Lets kernels on each of `devices` read and write the memory of all others, for the rest of the process. Throws UnsupportedError that
/// names two devices of which one cannot, and for a device that is named twice.
void enable_peer_access(const std::vector<int>& devices);

}  // namespace headroom
