// Whether GPUs of one host reach each other's memory.
#pragma once

#include <vector>

namespace headroom {

/// Lets kernels on each of `devices` read and write the memory of all others, for the rest of the process. Throws UnsupportedError that
/// names two devices of which one cannot, and for a device that is named twice.
void enable_peer_access(const std::vector<int>& devices);
/// Throws UnsupportedError that names two of them if kernels on one cannot add to counters in the memory of the other: over PCIe they may
/// read and write it and no more.
void require_peer_atomics(const std::vector<int>& devices);

}  // namespace headroom
