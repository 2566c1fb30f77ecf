// What the tests of kernels share: a skip where there is no GPU, fresh random values, and errors in which NaN
// fails.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/workload.h"
#include "data/dataset.h"
#include "device/device.h"
#include "device/memory.h"
#include "fresh_seed.h"
#include "layered/formats.h"
#include "layered/matrix.h"
#include "oracle/precision_rounding.h"

#define HEADROOM_NEEDS_DEVICE() \
  if (const auto missing = device_missing(0)) GTEST_SKIP() << *missing

namespace headroom {

/// ||found - expected|| / ||expected||; NaN if anything is NaN.
inline double relative_error(std::span<const double> found, std::span<const double> expected) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (found[i] - expected[i]) * (found[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

/// Typed tests are called by their format's precision.
struct FormatNames {
  template <class Format>
  static std::string GetName(int) {
    return std::string(to_string(Format::kPrecision));
  }
};

/// A matrix on the device in cuda-layered's layout and the same values in double on the host. What is not
/// written, padding included, is NaN.
template <class Value>
struct TestMatrix {
  TestMatrix(std::int64_t rows_, std::int64_t columns_)
      : rows(rows_), columns(columns_), buffer(rows_ * layered::padded(columns_)) {
    buffer.fill_bytes(0xff);
  }
  layered::Matrix<Value> view() { return layered::matrix(buffer.data(), rows, columns); }
  layered::Matrix<const Value> readable() {
    return layered::matrix<const Value>(buffer.data(), rows, columns);
  }

  /// Values that Format stores exactly, normally distributed; `values` gets what enters a product.
  template <class Format>
  void fill_random(std::mt19937_64& random, double scale) {
    std::normal_distribution<float> normal(0, static_cast<float>(scale));
    std::vector<Value> padded_values = buffer.to_host();
    values.resize(static_cast<std::size_t>(rows * columns));
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < columns; ++column) {
        const Value value = Format::round(normal(random));
        padded_values[static_cast<std::size_t>(row * layered::padded(columns) + column)] = value;
        values[static_cast<std::size_t>(row * columns + column)] = layered::to_float(value);
      }
    buffer.copy_from(padded_values);
  }
  /// What the device holds now, without padding.
  std::vector<double> found() const {
    const std::vector<Value> padded_values = buffer.to_host();
    std::vector<double> result;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < columns; ++column)
        result.push_back(layered::to_float(
            padded_values[static_cast<std::size_t>(row * layered::padded(columns) + column)]));
    return result;
  }
  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }

  std::int64_t rows, columns;
  DeviceBuffer<Value> buffer;
  std::vector<double> values;
};

/// A value on its way into a product: only tf32 rounds there.
template <class Format>
double product_input(double value) {
  return Format::kPrecision == Precision::kTf32 ? round_to_tf32(value) : value;
}

inline Workload test_workload(std::vector<int> widths, int batch_size, std::uint64_t seed) {
  Workload workload;
  workload.model.widths = std::move(widths);
  workload.batch_size = batch_size;
  workload.seed = seed;
  workload.name = default_name(workload);
  return workload;
}

}  // namespace headroom
