// Products with at most 16 columns on one side: the last layer of a classifier.
//
// Both kernels stream the layer's inputs from memory through registers, 16 bytes a load, and need no shared memory: within
// 32 columns it does not matter which of them the tensor core takes for which, so the lane that should hold columns
// 2t, 2t + 1, 2t + 8, 2t + 9 of a fragment holds 8t to 8t + 7 of two, and the other factor is read the same way.
//   forward:   a block takes 16 rows, its warps chunks of columns in turn; softmax and loss where the sums are
//              bytes: inputs once; weights from the L1
//   backward:  a warp takes 64 columns and walks rows; the weights of its columns stay in registers, and so do its sums of
//              the weight gradient until the block's warps add theirs up
//              bytes: inputs once, their gradient once
// Which lane holds what is said in warp_tensor.cuh.
#include <algorithm>

#include "layered/kernels.h"
#include "layered/narrow.h"
#include "layered/shapes.h"
#include "layered/sixteen.cuh"
#include "layered/warp_tensor.cuh"
#include "machine/dependent_launch.cuh"
#include "machine/launch_config.h"
#include "machine/matrices.cuh"

namespace headroom::layered {
namespace {

constexpr int kWarpRows = 16;
constexpr int kForwardWarps = 4;
constexpr int kWarps = 8, kStrip = 64, kChunks = kStrip / 32;  // backward
constexpr unsigned kOnePair[2] = {0x3c003c00u, 0x3f803f80u};   // fp16, bf16

/// Eight values of a row, `left` of which are before the row's end and not padding; zeros instead of the others.
template <class Value>
__device__ uint4 load_eight(const Value* from, int left) {
  uint4 values = make_uint4(0, 0, 0, 0);
  if (left > 0) values = __ldg(reinterpret_cast<const uint4*>(from));
  if (left < 8) {
    const auto keep = [&](unsigned& pair, int first) {
      pair &= left > first + 1 ? ~0u : left > first ? 0xffffu : 0u;
    };
    keep(values.x, 0), keep(values.y, 2), keep(values.z, 4), keep(values.w, 6);
  }
  return values;
}

/// Of the four lanes that share a row.
__device__ float row_maximum(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
__device__ float row_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

template <class Format>
__global__ void __launch_bounds__(32 * kForwardWarps)
    narrow_forward_kernel(Matrix<const typename Format::Value> inputs /* [batch, in] */,
                          Matrix<const typename Format::Value> weights /* [classes, in] */, const float* bias,
                          const std::int32_t* labels, const StepState* state, float gradient_scale,
                          Matrix<typename Format::Value> gradient /* [batch, classes] */, float* losses,
                          float loss_scale) {
  using Value = typename Format::Value;
  machine::wait_for_kernel_before();
  machine::let_next_kernel_start();
  __shared__ float shared[kForwardWarps][8][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, member = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t first = std::int64_t{blockIdx.x} * kWarpRows;
  const std::int64_t row[2] = {first + group, first + group + 8};
  // A row or class that there is not is another one; nobody looks at its logits.
  const Value *from[2], *weights_of[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    from[half] = inputs.data + (row[half] < inputs.rows ? row[half] : first) * inputs.pitch;
    weights_of[half] =
        weights.data + (group + 8 * half < weights.rows ? group + 8 * half : 0) * weights.pitch;
  }
  float logits[2][4] = {};  // of 8 classes each
  const int columns = static_cast<int>(inputs.columns);
#pragma unroll 4
  for (int chunk = 32 * warp; chunk < columns; chunk += 32 * kForwardWarps) {
    const int column = chunk + 8 * member, left = columns - column;
    const uint4 x0 = load_eight(from[0] + column, left), x1 = load_eight(from[1] + column, left);
    const unsigned lower[4] = {x0.x, x1.x, x0.y, x1.y}, upper[4] = {x0.z, x1.z, x0.w, x1.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 w = load_eight(weights_of[half] + column, left);
      multiply_add<Format>(logits[half], lower, w.x, w.y);
      multiply_add<Format>(logits[half], upper, w.z, w.w);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) shared[warp][i][lane] = logits[i / 4][i % 4];
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int other = 1; other < kForwardWarps; ++other) logits[i / 4][i % 4] += shared[other][i][lane];

  float loss = 0;
#pragma unroll
  for (int side = 0; side < 2; ++side) {  // of the lane's two rows
    const bool inside = row[side] < inputs.rows;
    const int label = inside ? labels[state->batch * inputs.rows + row[side]] : -1;
    float value[4], largest = -INFINITY, sum = 0, of_label = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int c = i / 2 * 8 + member * 2 + i % 2;
      value[i] = c < gradient.columns ? logits[i / 2][2 * side + i % 2] + bias[c] : -INFINITY;
      largest = fmaxf(largest, value[i]);
    }
    largest = row_maximum(largest);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int c = i / 2 * 8 + member * 2 + i % 2;
      if (c == label) of_label = value[i] - largest;
      value[i] = c < gradient.columns ? expf(value[i] - largest) : 0.0f;
      sum += value[i];
    }
    sum = row_sum(sum);
    of_label = row_sum(of_label);
    if (!inside) continue;
    loss += logf(sum) - of_label;
    Value* to = gradient.data + row[side] * gradient.pitch;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int c = 8 * half + 2 * member;
      if (c >= gradient.pitch) continue;
      float d[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        d[i] = c + i < gradient.columns
                   ? (value[2 * half + i] / sum - (c + i == label ? 1.0f : 0.0f)) * gradient_scale
                   : 0.0f;
      *reinterpret_cast<unsigned*>(to + c) = Sixteen<Format>::pack(d[0], d[1]);
    }
  }
  // Every lane of a row has its loss: add up the rows.
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) loss += __shfl_xor_sync(~0u, loss, distance);
  if (lane == 0) losses[blockIdx.x] = loss * loss_scale;
}

/// 16 rows of the strip, and of the gradient.
template <class Format>
struct BackwardRows {
  uint4 x[kChunks][2];
  unsigned d[4];  // 16 rows of 16 classes as a fragment
  /// x and d at the lane's first row and columns; how many rows, columns and classes are left from there.
  template <class Value>
  __device__ void load(const Value* x_from, std::int64_t x_pitch, const Value* d_from, std::int64_t d_pitch,
                       int rows, int columns, int classes) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const bool inside = rows > 8 * side;
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk)
        x[chunk][side] =
            load_eight(x_from + 8 * side * x_pitch + 32 * chunk, inside ? columns - 32 * chunk : 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned pair = 0;
        if (inside && classes > 8 * half)
          pair = __ldg(reinterpret_cast<const unsigned*>(d_from + 8 * side * d_pitch + 8 * half));
        if (classes == 8 * half + 1) pair &= 0xffffu;
        d[2 * half + side] = pair;
      }
    }
  }
};

template <class Format>
__global__ void __launch_bounds__(32 * kWarps, 2)
    narrow_backward_kernel(Matrix<const typename Format::Value> inputs /* [batch, in] */,
                           Matrix<const typename Format::Value> weights /* [classes, in] */,
                           Matrix<const typename Format::Value> gradient /* [batch, classes] */,
                           Matrix<typename Format::Value> input_gradient /* [batch, in] */,
                           float* workspace /* parts of [classes, in] and bias */, std::int64_t part_rows) {
  using Value = typename Format::Value;
  machine::wait_for_kernel_before();
  machine::let_next_kernel_start();
  __shared__ float shared[kWarps][kNarrowClasses][kStrip + 2];
  __shared__ float shared_bias[kWarps][kNarrowClasses];
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, member = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int column = static_cast<int>(blockIdx.x) * kStrip, lane_column = column + 8 * member;
  const std::int64_t first = blockIdx.y * part_rows + warp * kWarpRows + group;
  const std::int64_t end = (blockIdx.y + 1) * part_rows;
  // Rows, columns and classes from the lane's first on.
  int rows = static_cast<int>((end < inputs.rows ? end : inputs.rows) - first);
  const int columns = static_cast<int>(inputs.columns) - lane_column;
  const int classes = static_cast<int>(weights.rows) - 2 * member;
  constexpr int kStep = kWarps * kWarpRows;
  const Value* x_from = inputs.data + first * inputs.pitch + lane_column;
  const Value* d_from = gradient.data + first * gradient.pitch + 2 * member;
  Value* to = input_gradient.data + first * inputs.pitch + lane_column;

  BackwardRows<Format> next;
  next.load(x_from, inputs.pitch, d_from, gradient.pitch, rows, columns, classes);
  // Classes 2 member, 2 member + 1 and 8 more, of the column that is `group` in each eight.
  unsigned w[kChunks][4][2];
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int from = column + 32 * chunk + group / 2 * 8 + 2 * j + group % 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned pair = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int c = 8 * half + 2 * member + i;
          if (c >= weights.rows || from >= weights.columns) continue;
          pair |= unsigned{*reinterpret_cast<const unsigned short*>(weights.data + c * weights.pitch + from)}
                  << 16 * i;
        }
        w[chunk][j][half] = pair;
      }
    }

  float sums[kChunks][4][4] = {}, bias[4] = {};
  // Warps leave together: `rows` differs from lane to lane by the lane's row.
  for (; rows + group > 0; rows -= kStep, to += kStep * inputs.pitch) {
    const BackwardRows<Format> now = next;
    x_from += kStep * inputs.pitch, d_from += kStep * gradient.pitch;
    next.load(x_from, inputs.pitch, d_from, gradient.pitch, rows - kStep, columns, classes);
    const unsigned turned[4] = {machine::transpose8x8(now.d[0]), machine::transpose8x8(now.d[2]),
                                machine::transpose8x8(now.d[1]), machine::transpose8x8(now.d[3])};
    constexpr unsigned kOnes = kOnePair[Format::kPrecision == Precision::kBf16];
    multiply_add<Format>(bias, turned, kOnes, kOnes);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const unsigned x[2][4] = {{now.x[chunk][0].x, now.x[chunk][0].y, now.x[chunk][0].z, now.x[chunk][0].w},
                                {now.x[chunk][1].x, now.x[chunk][1].y, now.x[chunk][1].z, now.x[chunk][1].w}};
      unsigned held[2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        multiply_add<Format>(sums[chunk][j], turned, machine::transpose8x8(x[0][j]),
                             machine::transpose8x8(x[1][j]));
        float back[4] = {};
        multiply_add<Format>(back, now.d, w[chunk][j][0], w[chunk][j][1]);
#pragma unroll
        for (int side = 0; side < 2; ++side)
          held[side][j] = Sixteen<Format>::pack(back[2 * side], back[2 * side + 1]) &
                          Sixteen<Format>::positive(x[side][j]);
      }
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        if (rows > 8 * side && columns > 32 * chunk)
          __stcg(reinterpret_cast<uint4*>(to + 8 * side * inputs.pitch + 32 * chunk),
                 make_uint4(held[side][0], held[side][1], held[side][2], held[side][3]));
      }
    }
  }

  // Class `group` or 8 more; the same mapping of columns as above.
#pragma unroll
  for (int side = 0; side < 2; ++side) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        *reinterpret_cast<float2*>(&shared[warp][group + 8 * side][32 * chunk + 8 * member + 2 * j]) =
            make_float2(sums[chunk][j][2 * side], sums[chunk][j][2 * side + 1]);
    if (member == 0) shared_bias[warp][group + 8 * side] = bias[2 * side];
  }
  __syncthreads();
  const std::int64_t count = weights.rows * weights.pitch;
  float* part = workspace + blockIdx.y * (count + gradient.pitch);
  for (int i = static_cast<int>(threadIdx.x); i < kNarrowClasses * kStrip; i += 32 * kWarps) {
    const int c = i / kStrip, at = i % kStrip;
    float sum = 0;
#pragma unroll
    for (int from = 0; from < kWarps; ++from) sum += shared[from][c][at];
    if (c < weights.rows && column + at < weights.pitch) part[c * weights.pitch + column + at] = sum;
  }
  if (blockIdx.x == 0 && threadIdx.x < kNarrowClasses && threadIdx.x < gradient.pitch) {
    float sum = 0;
#pragma unroll
    for (int from = 0; from < kWarps; ++from) sum += shared_bias[from][threadIdx.x];
    part[count + threadIdx.x] = sum;
  }
}

/// Parts of the batch, so that every multiprocessor has two blocks; rows of each.
std::int64_t part_rows(std::int64_t batch, std::int64_t in) {
  const std::int64_t parts = std::max<std::int64_t>(1, 2 * multiprocessors() / tiles(in, kStrip));
  return tiles(tiles(batch, static_cast<int>(parts)), kWarps * kWarpRows) * kWarps * kWarpRows;
}

}  // namespace

template <class Format>
std::int64_t NarrowLayer<Format>::workspace_values(std::int64_t batch, std::int64_t classes,
                                                   std::int64_t in) {
  return tiles(batch, static_cast<int>(part_rows(batch, in))) * (classes * padded(in) + padded(classes));
}

template <class Format>
NarrowLayer<Format>::NarrowLayer(Matrix<const Value> inputs, Matrix<float> masters, Matrix<Value> copy,
                                 Matrix<Value> gradient, Matrix<Value> input_gradient, float* workspace)
    : inputs_(inputs),
      masters_(masters),
      copy_(copy),
      gradient_(gradient),
      input_gradient_(input_gradient),
      workspace_(workspace),
      part_rows_(part_rows(inputs.rows, inputs.columns)) {
  require_shape(masters.rows <= kNarrowClasses, "narrow layer: classes, at most", masters.rows,
                kNarrowClasses);
  require_equal("narrow layer: columns of the weights against the inputs", masters.columns, inputs.columns);
  require_equal("narrow layer: rows of the copy against those of the masters", copy.rows, masters.rows);
  require_equal("narrow layer: columns of the copy against those of the masters", copy.columns,
                masters.columns);
  require_equal("narrow layer: columns of the gradient against the classes", gradient.columns, masters.rows);
  require_equal("narrow layer: rows of the gradient against the batch", gradient.rows, inputs.rows);
  require_equal("narrow layer: rows of the input gradient against the batch", input_gradient.rows,
                inputs.rows);
  require_equal("narrow layer: columns of the input gradient against the inputs", input_gradient.columns,
                inputs.columns);
  parts_ = static_cast<int>(tiles(inputs.rows, static_cast<int>(part_rows_)));
}

template <class Format>
void NarrowLayer<Format>::queue_forward(const std::int32_t* labels, const StepState* state,
                                        float gradient_scale, float* losses_of_rows, Stream& stream) const {
  const std::int64_t count = losses(inputs_.rows);
  const float* bias = masters_.data + masters_.rows * masters_.pitch;
  const Matrix<const Value> weights{copy_.data, copy_.rows, copy_.columns, copy_.pitch};
  const machine::LaunchConfig launch(static_cast<int>(count), 32 * kForwardWarps, 0, stream.get());
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, narrow_forward_kernel<Format>, inputs_, weights, bias, labels,
                                state, gradient_scale, gradient_, losses_of_rows,
                                static_cast<float>(count) / static_cast<float>(inputs_.rows)));
}

template <class Format>
void NarrowLayer<Format>::queue_backward(Stream& stream) const {
  const Matrix<const Value> weights{copy_.data, copy_.rows, copy_.columns, copy_.pitch},
      gradient{gradient_.data, gradient_.rows, gradient_.columns, gradient_.pitch};
  machine::LaunchConfig launch(static_cast<int>(tiles(inputs_.columns, kStrip)), 32 * kWarps, 0,
                               stream.get());
  launch.config.gridDim.y = static_cast<unsigned>(parts_);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, narrow_backward_kernel<Format>, inputs_, weights, gradient,
                                input_gradient_, workspace_, part_rows_));
}

template <class Format>
PartsUpdate<Format> NarrowLayer<Format>::update() const {
  const std::int64_t count = masters_.rows * masters_.pitch + padded(masters_.rows);
  return {masters_.data, workspace_, parts_, count, copy_.data, count};
}

template class NarrowLayer<Fp16>;
template class NarrowLayer<Bf16>;

}  // namespace headroom::layered
