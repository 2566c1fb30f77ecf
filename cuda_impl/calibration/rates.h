// Bytes and operations per second.
#pragma once

#include <cstdint>

#include "device/stream.h"

namespace headroom::calibration {

/// Bytes read plus bytes written per second of a copy between two buffers of `bytes`, the faster of our kernels and
/// cudaMemcpyAsync.
double copy_rate(Stream& stream, int sm_count, std::int64_t bytes);

/// Bytes per second that all SMs together read of a buffer of `bytes` that no cache holds.
double read_rate(Stream& stream, int sm_count, std::int64_t bytes);

/// Bytes per second that one SM reads of 4 MiB that lie in the L2: the width of its port.
double one_sm_read_rate(Stream& stream);

/// Operations per second (a multiply-add counts two) of plain fp32 multiply-adds on random values.
double fp32_rate(Stream& stream, int sm_count);

}  // namespace headroom::calibration
