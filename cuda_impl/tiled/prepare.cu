// Between the flat arrays that the host knows and the orders in which the step reads: once for a data set or a state, and a small
// kernel before each launch of steps.
#include "device/check.h"
#include "machine/formats.cuh"
#include "tiled/kernels.h"

namespace headroom::tiled {
namespace {

using machine::Bf16;
using machine::Fp16;

constexpr int kThreads = 256;

unsigned blocks_for(std::int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }
__device__ std::int64_t thread_of_grid() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

template <class Format>
__global__ void __launch_bounds__(kThreads)
    place_weights_kernel(const float* weights /* [out, in] */, int out, int in, int tile_rows,
                         int tile_columns, int in_tiles, float* placed,
                         std::uint16_t* copy /* [out, pitch], or null */, std::int64_t pitch) {
  const std::int64_t element = thread_of_grid();
  if (element >= std::int64_t{out} * in) return;
  const int row = static_cast<int>(element / in), column = static_cast<int>(element % in);
  const float weight = weights[element];
  placed[place_of_weight(tile_rows, tile_columns, in_tiles, row, column)] = weight;
  if (copy != nullptr) copy[row * pitch + column] = Format::round_weight(weight);
}

__global__ void __launch_bounds__(kThreads)
    collect_weights_kernel(const float* placed, int out, int in, int tile_rows, int tile_columns,
                           int in_tiles, float* weights /* [out, in] */) {
  const std::int64_t element = thread_of_grid();
  if (element >= std::int64_t{out} * in) return;
  const int row = static_cast<int>(element / in), column = static_cast<int>(element % in);
  weights[element] = placed[place_of_weight(tile_rows, tile_columns, in_tiles, row, column)];
}

template <class Format>
__global__ void __launch_bounds__(kThreads)
    round_features_kernel(const float* features /* [rows, columns] */, std::int64_t rows,
                          std::int64_t columns, std::uint16_t* rounded /* [rows, pitch] */,
                          std::int64_t pitch) {
  const std::int64_t element = thread_of_grid();
  if (element >= rows * columns) return;
  rounded[element / columns * pitch + element % columns] = Format::round(features[element]);
}

__global__ void __launch_bounds__(kThreads) set_factors_kernel(Optimizer optimizer, std::int64_t first_step,
                                                               int steps, rules::UpdateFactors* factors) {
  const std::int64_t step = thread_of_grid();
  if (step < steps) factors[step] = rules::update_factors(optimizer, first_step + step);
}

}  // namespace

void place_weights(Precision precision, const float* weights, const WeightPlaces& places, float* placed,
                   void* copy, std::int64_t pitch, cudaStream_t stream) {
  const unsigned blocks = blocks_for(std::int64_t{places.out} * places.in);
  auto* to = static_cast<std::uint16_t*>(copy);
  if (precision == Precision::kBf16)
    place_weights_kernel<Bf16><<<blocks, kThreads, 0, stream>>>(weights, places.out, places.in,
                                                                places.tiling.rows(), places.tiling.columns,
                                                                places.in_tiles(), placed, to, pitch);
  else
    place_weights_kernel<Fp16><<<blocks, kThreads, 0, stream>>>(weights, places.out, places.in,
                                                                places.tiling.rows(), places.tiling.columns,
                                                                places.in_tiles(), placed, to, pitch);
  CUDA_CHECK(cudaGetLastError());
}

void collect_weights(const float* placed, const WeightPlaces& places, float* weights, cudaStream_t stream) {
  const unsigned blocks = blocks_for(std::int64_t{places.out} * places.in);
  collect_weights_kernel<<<blocks, kThreads, 0, stream>>>(placed, places.out, places.in, places.tiling.rows(),
                                                          places.tiling.columns, places.in_tiles(), weights);
  CUDA_CHECK(cudaGetLastError());
}

void round_features(Precision precision, const float* features, std::int64_t rows, std::int64_t columns,
                    void* rounded, std::int64_t pitch, cudaStream_t stream) {
  const unsigned blocks = blocks_for(rows * columns);
  auto* to = static_cast<std::uint16_t*>(rounded);
  if (precision == Precision::kBf16)
    round_features_kernel<Bf16><<<blocks, kThreads, 0, stream>>>(features, rows, columns, to, pitch);
  else
    round_features_kernel<Fp16><<<blocks, kThreads, 0, stream>>>(features, rows, columns, to, pitch);
  CUDA_CHECK(cudaGetLastError());
}

void set_factors(const Optimizer& optimizer, std::int64_t first_step, int steps,
                 rules::UpdateFactors* factors, cudaStream_t stream) {
  set_factors_kernel<<<blocks_for(steps), kThreads, 0, stream>>>(optimizer, first_step, steps, factors);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace headroom::tiled
