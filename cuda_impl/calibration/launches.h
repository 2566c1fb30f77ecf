// What it costs to start work on the device.
#pragma once

#include "device/stream.h"

namespace headroom::calibration {

/// Seconds from one empty kernel to the next, launched back to back on a stream.
double launch_seconds(Stream& stream);
/// Seconds that one more empty kernel adds to a CUDA graph.
double graph_node_seconds(Stream& stream);
/// Seconds from one launch of a graph of ten empty kernels to the next.
double graph_relaunch_seconds(Stream& stream);

}  // namespace headroom::calibration
