// Flat fp32 files, little-endian and without a header: how parameters and losses cross the worker protocol.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace headroom {

/// Writes over what the file holds, if there is one. Throws std::runtime_error that names the file.
void write_floats(const std::filesystem::path& file, std::span<const float> values);
/// Throws std::runtime_error that names the file, also if it holds another number of values than `count`.
void read_floats(const std::filesystem::path& file, std::span<float> values);
std::vector<float> read_floats(const std::filesystem::path& file, std::int64_t count);

}  // namespace headroom
