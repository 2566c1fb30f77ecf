// What it costs thread blocks to wait for each other and to hand each other values.
#pragma once

#include <cstdint>
#include <vector>

#include "device/stream.h"

namespace headroom::calibration {

/// Whether the device has thread block clusters (sm_90 and newer).
bool has_clusters(int device);

/// Seconds of a barrier over one block on each SM: an atomic counter, one thread a block waits.
double chip_barrier_seconds(Stream& stream, int sm_count, int repeats);
/// Seconds of barrier.cluster over `blocks` blocks.
double cluster_barrier_seconds(Stream& stream, int blocks, int repeats);
/// Seconds of a read of the neighbour's shared memory whose address is the value read before.
double remote_read_seconds(Stream& stream, int repeats);

/// The exchange that a step's layers wait for: each of `blocks` blocks owns a part of a [32, columns] matrix of 16-bit
/// values and needs all of it in its shared memory; the next part is made of what was received, so that no exchange can
/// begin before the one before has ended.
struct GatherShape {
  int blocks = 0, columns = 0;
  int threads = 256;  ///< a block
};
struct GatherResult {
  double seconds = 0;                 ///< of one exchange
  std::vector<std::uint32_t> values;  ///< the matrix that each block ended with, [blocks, 16 * columns] words
};
/// What every block must end with after `repeats` exchanges. All throw std::invalid_argument unless the blocks divide the
/// matrix's vectors of 16 bytes, and for threads that are no whole warps.
std::vector<std::uint32_t> expected_gather(const GatherShape& shape, int repeats);

/// Within one cluster, through distributed shared memory. Throws std::invalid_argument unless blocks is 2, 4, 8 or 16 and
/// the matrix has at most 16 vectors of 16 bytes for each thread of a block.
GatherResult cluster_gather(Stream& stream, const GatherShape& shape, int repeats);
/// Over blocks on as many SMs, through the L2. Throws what CUDA says where they do not fit on the device together.
GatherResult chip_gather(Stream& stream, const GatherShape& shape, int repeats);

}  // namespace headroom::calibration
