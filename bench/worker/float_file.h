// Flat fp32 files, little-endian and without a header: how parameters and losses cross the worker protocol.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/parameters.h"

namespace headroom {

/// Writes over what the file holds, if there is one. Throws std::runtime_error that names the file.
void write_floats(const std::filesystem::path& file, std::span<const float> values);
/// Throws std::runtime_error that names the file, also if it holds another number of values than `count`.
void read_floats(const std::filesystem::path& file, std::span<float> values);
std::vector<float> read_floats(const std::filesystem::path& file, std::int64_t count);

/// The same of the parameters, and each slot behind them.
void write_state(const std::filesystem::path& file, const State& state);
void read_state(const std::filesystem::path& file, State& state);
/// How many values these are.
std::int64_t value_count(const State& state);

}  // namespace headroom
