// Short bursts, the fastest counts: a floor must not be over what a step can reach before the power limit sets in.
#include "cublaslt/matrix_rates.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/error.h"
#include "cublaslt/product.h"
#include "cublaslt/trainer.h"
#include "device/device.h"
#include "device/memory.h"

namespace headroom {
namespace {

using namespace cublaslt;

struct Shape {
  std::int64_t m, n, k;
};
// A cube that the caches hold, and a large one; in fp32 the large one takes too long for what it adds.
constexpr Shape kShapes[] = {{4096, 4096, 4096}, {8192, 8192, 8192}};
constexpr std::int64_t kMostInFp32 = 4096;
constexpr std::int64_t kMostValues = std::int64_t{8192} * 8192;

struct Types {
  Precision precision;
  cudaDataType_t type;
  cublasComputeType_t compute;
  std::int64_t bytes;
};
constexpr Types kTypes[] = {{Precision::kFp32, CUDA_R_32F, CUBLAS_COMPUTE_32F, 4},
                            {Precision::kTf32, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, 4},
                            {Precision::kFp16, CUDA_R_16F, CUBLAS_COMPUTE_32F, 2},
                            {Precision::kBf16, CUDA_R_16BF, CUBLAS_COMPUTE_32F, 2}};

// Uniform in [-1, 1) with the top bits of a 32-bit random number: as fp32, or rounded down to 16 bits.
std::uint32_t random_bits(std::uint32_t& state, cudaDataType_t type) {
  state = state * 1664525u + 1013904223u;
  const float value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  std::uint32_t bits;
  static_assert(sizeof bits == sizeof value);
  __builtin_memcpy(&bits, &value, sizeof bits);
  if (type == CUDA_R_32F) return bits;
  if (type == CUDA_R_16BF) return bits >> 16;
  // To fp16: the exponent's offset moves from 127 to 15; what is too small becomes zero.
  const std::uint32_t sign = bits >> 16 & 0x8000u, exponent = bits >> 23 & 0xffu;
  return exponent < 113 ? sign : sign | (exponent - 112) << 10 | (bits >> 13 & 0x3ffu);
}

// A small random pattern repeated: filling gigabytes on the host would take longer than all else.
DeviceBuffer<char> random_matrix(const Types& types, std::uint32_t seed) {
  constexpr std::int64_t kPattern = 1 << 18;
  std::vector<char> pattern(static_cast<std::size_t>(kPattern * types.bytes));
  for (std::int64_t i = 0; i < kPattern; ++i) {
    const std::uint32_t bits = random_bits(seed, types.type);
    __builtin_memcpy(pattern.data() + i * types.bytes, &bits, static_cast<std::size_t>(types.bytes));
  }
  DeviceBuffer<char> matrix(kMostValues * types.bytes);
  for (std::int64_t at = 0; at < matrix.size(); at += kPattern * types.bytes) {
    CUDA_CHECK(cudaMemcpyAsync(matrix.data() + at, pattern.data(), pattern.size(), cudaMemcpyHostToDevice));
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  return matrix;
}

double product_rate(const Context& context, Stream& stream, Workspace& workspace, const Types& types,
                    const Shape& size, const void* a, const void* b, void* d) {
  ProductShape shape;
  shape.m = size.m, shape.n = size.n, shape.k = size.k;
  shape.a_transposed = true;  // both matrices along k, as the library's fastest kernels have them
  shape.a_pitch = shape.b_pitch = size.k;
  shape.d_pitch = size.m;
  shape.input_type = shape.output_type = types.type;
  shape.compute_type = types.compute;
  Product product(context, shape);
  if (!product.possible()) return 0;
  product.choose(stream, workspace, a, b, d);
  constexpr int kBursts = 5, kRuns = 3;
  double fastest = product.seconds();
  Event begin, end;
  for (int burst = 0; burst < kBursts; ++burst) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // clocks recover from the burst before
    for (int run = 0; run < kRuns; ++run) {
      begin.record(stream);
      product.queue(stream, workspace, a, b, d);
      end.record(stream);
      fastest = std::min(fastest, seconds_between(begin, end));
    }
  }
  return 2.0 * static_cast<double>(size.m) * static_cast<double>(size.n) * static_cast<double>(size.k) /
         fastest;
}

}  // namespace

Calibration calibrate_matrix_products(int device) {
  if (const auto unavailable = cublaslt_unavailable(device)) throw UnsupportedError(*unavailable);
  use_device(device);
  const Context context;
  Stream stream;
  Workspace workspace;
  Calibration rates;
  for (const Types& types : kTypes) {
    const DeviceBuffer<char> a = random_matrix(types, 1), b = random_matrix(types, 2);
    DeviceBuffer<char> d(kMostValues * types.bytes);
    double fastest = 0;
    for (const Shape& shape : kShapes) {
      if (types.precision == Precision::kFp32 && shape.k > kMostInFp32) continue;
      fastest = std::max(
          fastest, product_rate(context, stream, workspace, types, shape, a.data(), b.data(), d.data()));
    }
    if (fastest > 0) {
      rates["matrix_" + std::string(to_string(types.precision))] = {
          fastest, "flops_per_second",
          "cuBLASLt, cubes of 4096 and 8192 (fp32: 4096) of random values, the fastest kernel and run"};
    }
  }
  return rates;
}

}  // namespace headroom
