// Element-wise passes and column sums; each reads and writes its arrays once, and nothing else.
//
// A thread handles one vector of four values (eight bytes in 16 bits). At batch 32 these kernels are all latency:
// they are kept to one wave and no shared memory where that is possible.
#include <stdexcept>
#include <string>

#include "cublaslt/kernels.h"
#include "rules/activation.cuh"

namespace headroom::cublaslt {
namespace {

constexpr int kBlock = 256;
constexpr int kColumnsPerBlock = 128;  // a warp reads four values a lane
constexpr int kRowsAtOnce = 8;         // warps of a block, each on rows of its own

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

void require_multiple(std::int64_t value, std::int64_t of, const char* what) {
  if (value < 0 || value % of != 0)
    throw std::invalid_argument(std::string(what) + ": found " + std::to_string(value) +
                                ", expected a multiple of " + std::to_string(of));
}

/// Blocks for `items` threads; grids walk on with this stride where there are more.
unsigned blocks_for(std::int64_t items) {
  const std::int64_t blocks = divide_up(items, kBlock);
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 65535 ? 65535 : blocks);
}

template <class Value>
struct alignas(4 * sizeof(Value)) Quad {
  Value value[4];
};

__global__ void __launch_bounds__(kBlock)
    gather_kernel(const uint4* inputs, const layered::StepState* state, std::int64_t batches,
                  std::int64_t batch_vectors, uint4* batches_out) {
  const std::int64_t batch = (state->batch + blockIdx.y) % batches;
  const uint4* from = inputs + batch * batch_vectors;
  uint4* to = batches_out + blockIdx.y * batch_vectors;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < batch_vectors;
       i += std::int64_t{gridDim.x} * kBlock)
    to[i] = from[i];
}

/// A warp walks along one row, 128 values at a time, so that a group of eight lanes makes one word of the mask.
template <class Format>
__global__ void __launch_bounds__(kBlock)
    activate_kernel(const float* sums /* [batch, width] */, const float* bias /* [width] */,
                    typename Format::Value* hidden /* [batch, width] */,
                    std::uint32_t* mask /* [batch, mask_words], or null */, std::int64_t mask_words,
                    std::int64_t batch, std::int64_t width, std::int64_t spans /* of 128 values a row */) {
  using Value = typename Format::Value;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warps = std::int64_t{gridDim.x} * (kBlock / 32);
  for (std::int64_t item = std::int64_t{blockIdx.x} * (kBlock / 32) + threadIdx.x / 32; item < batch * spans;
       item += warps) {
    const std::int64_t row = item / spans, span = item % spans;
    const std::int64_t column = span * 128 + 4 * lane;
    std::uint32_t bits = 0;
    if (column < width) {
      const float4 sum = *reinterpret_cast<const float4*>(sums + row * width + column);
      const float4 shift = *reinterpret_cast<const float4*>(bias + column);
      const float values[4] = {sum.x + shift.x, sum.y + shift.y, sum.z + shift.z, sum.w + shift.w};
      Quad<Value> quad;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // The comparison is written so that NaN stays NaN and is seen in the loss.
        quad.value[i] = Format::round(values[i] < 0 ? 0.0f : values[i]);
        if (layered::to_float(quad.value[i]) > 0) bits |= 1u << i;
      }
      *reinterpret_cast<Quad<Value>*>(hidden + row * width + column) = quad;
    }
    if (mask == nullptr) continue;
    bits <<= 4 * (lane % 8);
    for (int distance = 1; distance < 8; distance *= 2) bits |= __shfl_xor_sync(0xffffffffu, bits, distance);
    if (lane % 8 == 0) mask[row * mask_words + span * 4 + lane / 8] = bits;
  }
}

template <class Format>
__global__ void __launch_bounds__(kBlock)
    mask_kernel(typename Format::Value* gradient, const typename Format::Value* hidden, std::int64_t quads) {
  using Value = typename Format::Value;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < quads;
       i += std::int64_t{gridDim.x} * kBlock) {
    Quad<Value> values = reinterpret_cast<Quad<Value>*>(gradient)[i];
    const Quad<Value> active = reinterpret_cast<const Quad<Value>*>(hidden)[i];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (!(layered::to_float(active.value[n]) > 0)) values.value[n] = Format::round(0.0f);
    reinterpret_cast<Quad<Value>*>(gradient)[i] = values;
  }
}

template <class Format>
__global__ void __launch_bounds__(kBlock)
    activate_other_kernel(Activation activation, const float* sums /* [batch, width] */,
                          const float* bias /* [width] */, typename Format::Value* hidden,
                          typename Format::Value* kept /* or null */, std::int64_t row_quads,
                          std::int64_t quads) {
  using Value = typename Format::Value;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < quads;
       i += std::int64_t{gridDim.x} * kBlock) {
    const Quad<float> sum = reinterpret_cast<const Quad<float>*>(sums)[i];
    const Quad<float> shift = reinterpret_cast<const Quad<float>*>(bias)[i % row_quads];
    Quad<Value> active, before;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float z = sum.value[n] + shift.value[n];
      before.value[n] = Format::round(z);
      active.value[n] = Format::round(rules::activated(activation, z));
    }
    reinterpret_cast<Quad<Value>*>(hidden)[i] = active;
    if (kept != nullptr) reinterpret_cast<Quad<Value>*>(kept)[i] = before;
  }
}

template <class Format>
__global__ void __launch_bounds__(kBlock)
    pass_back_kernel(Activation activation, const float* unrounded, const typename Format::Value* kept,
                     typename Format::Value* gradient, std::int64_t quads) {
  using Value = typename Format::Value;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x; i < quads;
       i += std::int64_t{gridDim.x} * kBlock) {
    const Quad<float> incoming = reinterpret_cast<const Quad<float>*>(unrounded)[i];
    const Quad<Value> own = reinterpret_cast<const Quad<Value>*>(kept)[i];
    Quad<Value> result;
#pragma unroll
    for (int n = 0; n < 4; ++n)
      result.value[n] =
          Format::round(rules::passed_back(activation, layered::to_float(own.value[n]), incoming.value[n]));
    reinterpret_cast<Quad<Value>*>(gradient)[i] = result;
  }
}

/// A block owns 128 columns of one part of the batch; its eight warps take turns at the rows.
template <class Format>
__global__ void __launch_bounds__(32 * kRowsAtOnce)
    sum_columns_kernel(const typename Format::Value* gradient /* [batch, width] */, std::int64_t batch,
                       std::int64_t width, std::int64_t part_rows, float* partial_sums /* [parts, stride] */,
                       std::int64_t stride) {
  using Value = typename Format::Value;
  __shared__ float4 sums[kRowsAtOnce][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t column = std::int64_t{blockIdx.x} * kColumnsPerBlock + 4 * lane;
  const std::int64_t begin = blockIdx.y * part_rows;
  const std::int64_t end = begin + part_rows < batch ? begin + part_rows : batch;
  float4 sum{0, 0, 0, 0};
  if (column < width) {
#pragma unroll 4
    for (std::int64_t row = begin + warp; row < end; row += kRowsAtOnce) {
      const Quad<Value> quad = *reinterpret_cast<const Quad<Value>*>(gradient + row * width + column);
      sum.x += layered::to_float(quad.value[0]), sum.y += layered::to_float(quad.value[1]);
      sum.z += layered::to_float(quad.value[2]), sum.w += layered::to_float(quad.value[3]);
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();  // the warps' sums are written
  if (warp != 0 || column >= width) return;
  for (int other = 1; other < kRowsAtOnce; ++other) {
    const float4 more = sums[other][lane];
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  *reinterpret_cast<float4*>(partial_sums + blockIdx.y * stride + column) = sum;
}

/// 32 biases a block; eight rows of threads share the parts. `biases` are updated, or get the sums.
template <bool kUpdates>
__global__ void __launch_bounds__(kBlock)
    sum_parts_kernel(float* biases /* [count] */, const float* partial_sums /* [parts, count] */, int parts,
                     std::int64_t count, float factor) {
  __shared__ float sums[kBlock / 32][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t i = std::int64_t{blockIdx.x} * 32 + lane;
  float sum = 0;
  if (i < count)
    for (int part = row; part < parts; part += kBlock / 32) sum += partial_sums[part * count + i];
  sums[row][lane] = sum;
  __syncthreads();  // the rows' sums are written
  if (row != 0 || i >= count) return;
  for (int other = 1; other < kBlock / 32; ++other) sum += sums[other][lane];
  biases[i] = kUpdates ? fmaf(-factor, sum, biases[i]) : sum;
}

}  // namespace

template <class Format>
void gather_batches(const typename Format::Value* inputs, const layered::StepState* state,
                    std::int64_t batches, std::int64_t batch_values, std::int64_t count,
                    typename Format::Value* batches_out, Stream& stream) {
  require_multiple(batch_values, 8, "gather: values of a batch");
  const std::int64_t vectors = batch_values * static_cast<std::int64_t>(sizeof(typename Format::Value)) / 16;
  const dim3 grid(blocks_for(divide_up(vectors, 2)), static_cast<unsigned>(count));
  gather_kernel<<<grid, kBlock, 0, stream.get()>>>(reinterpret_cast<const uint4*>(inputs), state, batches,
                                                   vectors, reinterpret_cast<uint4*>(batches_out));
  CUDA_CHECK(cudaGetLastError());
}

template <class Format>
void activate(const float* sums, const float* bias, typename Format::Value* hidden, std::uint32_t* mask,
              std::int64_t batch, std::int64_t width, Stream& stream) {
  require_multiple(width, 8, "activate: width");
  const std::int64_t spans = divide_up(width, 128);
  activate_kernel<Format><<<blocks_for(batch * spans * 32), kBlock, 0, stream.get()>>>(
      sums, bias, hidden, mask, mask_pitch(width) / 32, batch, width, spans);
  CUDA_CHECK(cudaGetLastError());
}

template <class Format>
void apply_mask(typename Format::Value* gradient, const typename Format::Value* hidden, std::int64_t batch,
                std::int64_t width, Stream& stream) {
  require_multiple(width, 8, "mask: width");
  const std::int64_t quads = batch * width / 4;
  mask_kernel<Format><<<blocks_for(quads), kBlock, 0, stream.get()>>>(gradient, hidden, quads);
  CUDA_CHECK(cudaGetLastError());
}

template <class Format>
void activate_other(Activation activation, const float* sums, const float* bias,
                    typename Format::Value* hidden, typename Format::Value* kept, std::int64_t batch,
                    std::int64_t width, Stream& stream) {
  require_multiple(width, 8, "activate: width");
  const std::int64_t quads = batch * width / 4;
  activate_other_kernel<Format><<<blocks_for(quads), kBlock, 0, stream.get()>>>(
      activation, sums, bias, hidden, kept, width / 4, quads);
  CUDA_CHECK(cudaGetLastError());
}

template <class Format>
void pass_back(Activation activation, const float* unrounded, const typename Format::Value* kept,
               typename Format::Value* gradient, std::int64_t batch, std::int64_t width, Stream& stream) {
  require_multiple(width, 8, "pass back: width");
  const std::int64_t quads = batch * width / 4;
  pass_back_kernel<Format>
      <<<blocks_for(quads), kBlock, 0, stream.get()>>>(activation, unrounded, kept, gradient, quads);
  CUDA_CHECK(cudaGetLastError());
}

int bias_parts(std::int64_t batch) {
  const std::int64_t parts = batch / 256;
  return static_cast<int>(parts < 1 ? 1 : parts > 256 ? 256 : parts);
}

template <class Format>
void sum_columns(const typename Format::Value* gradient, std::int64_t batch, std::int64_t width, int parts,
                 float* partial_sums, std::int64_t stride, Stream& stream) {
  require_multiple(width, 8, "sum of columns: width");
  require_multiple(stride, 4, "sum of columns: stride");
  const dim3 grid(static_cast<unsigned>(divide_up(width, kColumnsPerBlock)), static_cast<unsigned>(parts));
  sum_columns_kernel<Format><<<grid, 32 * kRowsAtOnce, 0, stream.get()>>>(
      gradient, batch, width, divide_up(batch, parts), partial_sums, stride);
  CUDA_CHECK(cudaGetLastError());
}

void update_biases(float* biases, const float* partial_sums, int parts, std::int64_t count, float factor,
                   Stream& stream) {
  sum_parts_kernel<true><<<static_cast<unsigned>(divide_up(count, 32)), kBlock, 0, stream.get()>>>(
      biases, partial_sums, parts, count, factor);
  CUDA_CHECK(cudaGetLastError());
}

void sum_parts(const float* partial_sums, int parts, std::int64_t count, float* sums, Stream& stream) {
  sum_parts_kernel<false><<<static_cast<unsigned>(divide_up(count, 32)), kBlock, 0, stream.get()>>>(
      sums, partial_sums, parts, count, 0);
  CUDA_CHECK(cudaGetLastError());
}

#define HEADROOM_INSTANTIATE(Format)                                                                         \
  template void gather_batches<layered::Format>(const layered::Format::Value*, const layered::StepState*,    \
                                                std::int64_t, std::int64_t, std::int64_t,                    \
                                                layered::Format::Value*, Stream&);                           \
  template void activate<layered::Format>(const float*, const float*, layered::Format::Value*,               \
                                          std::uint32_t*, std::int64_t, std::int64_t, Stream&);              \
  template void apply_mask<layered::Format>(layered::Format::Value*, const layered::Format::Value*,          \
                                            std::int64_t, std::int64_t, Stream&);                            \
  template void activate_other<layered::Format>(Activation, const float*, const float*,                      \
                                                layered::Format::Value*, layered::Format::Value*,            \
                                                std::int64_t, std::int64_t, Stream&);                        \
  template void pass_back<layered::Format>(Activation, const float*, const layered::Format::Value*,          \
                                           layered::Format::Value*, std::int64_t, std::int64_t, Stream&);    \
  template void sum_columns<layered::Format>(const layered::Format::Value*, std::int64_t, std::int64_t, int, \
                                             float*, std::int64_t, Stream&);
HEADROOM_INSTANTIATE(Fp32)
HEADROOM_INSTANTIATE(Tf32)
HEADROOM_INSTANTIATE(Fp16)
HEADROOM_INSTANTIATE(Bf16)
#undef HEADROOM_INSTANTIATE

}  // namespace headroom::cublaslt
