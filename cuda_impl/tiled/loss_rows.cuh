// The loss of one row of the batch and its gradient, for every kernel of cuda-tiled: by four lanes that hold the outputs, or by a warp
// that finds them in device memory.
#pragma once

#include "machine/reductions.cuh"
#include "rules/loss.cuh"
#include "tiled/ranks.cuh"

namespace headroom::tiled {

/// A row of the batch of this step, and its place in the data set.
struct SampleRow {
  int row;
  bool inside;
  std::int64_t sample;
  /// `samples`: joined_rows() of a step. Labels and targets begin with this rank's first.
  MACHINE_DEVICE SampleRow(const Arguments& a, const StepPlace& step, int row_of_batch, int samples)
      : row(row_of_batch),
        inside(row_of_batch < a.batch),
        sample(std::int64_t{step.batch} * samples + (inside ? row_of_batch : 0)) {}
};

/// Softmax cross-entropy of one row. z: the row's outputs in this lane, columns 8j + first and one more, then the gradient. The loss is
/// the same in all four lanes.
template <int kPieces>
MACHINE_DEVICE float cross_entropy_of_row(float2 (&z)[kPieces], int outputs, int first, std::int32_t label,
                                          float scale) {
  float largest = -INFINITY;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (8 * j + first < outputs) largest = fmaxf(largest, z[j].x);
    if (8 * j + first + 1 < outputs) largest = fmaxf(largest, z[j].y);
  }
  largest = machine::quad_maximum(largest);
  float sum = 0, of_label = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int column = 8 * j + first;
    if (label == column) of_label = z[j].x - largest;
    if (label == column + 1) of_label = z[j].y - largest;
    z[j].x = column < outputs ? expf(z[j].x - largest) : 0.0f;
    z[j].y = column + 1 < outputs ? expf(z[j].y - largest) : 0.0f;
    sum += z[j].x + z[j].y;
  }
  sum = machine::quad_sum(sum);
  of_label = machine::quad_sum(of_label);
  const float inverse = 1 / sum;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int column = 8 * j + first;
    z[j].x = rules::cross_entropy_gradient(z[j].x * inverse, label == column) * scale;
    z[j].y = rules::cross_entropy_gradient(z[j].y * inverse, label == column + 1) * scale;
  }
  return rules::cross_entropy(sum, of_label);
}

/// As cross_entropy_of_row(), of a loss over targets.
template <Loss kLoss, int kPieces>
MACHINE_DEVICE float loss_of_row(float2 (&z)[kPieces], int outputs, int first, const float* targets,
                                 float scale) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 8 * j + first + i;
      float& value = i == 0 ? z[j].x : z[j].y;
      if (column < outputs) {
        const rules::LossTerm term = rules::loss_term(kLoss, value, targets[column]);
        value = term.gradient * scale;
        sum += term.loss;
      } else {
        value = 0;
      }
    }
  return machine::quad_sum(sum) / static_cast<float>(outputs);
}

/// The outputs of a row in device memory, by a warp: what softmax needs of it, then each value's gradient. Both times its outputs come
/// from the L2. store(column, gradients of four columns from there on) for all columns of the pitch, zeros behind the last output.
/// Returns the lane's part of the row's loss.
template <Loss kLoss, class Store>
MACHINE_DEVICE float loss_of_outputs(const Arguments& a, const SampleRow& row, int outputs, int lane,
                                     const Store& store) {
  const int pitch = a.outputs_pitch;
  const float* z = a.outputs + std::int64_t{row.row} * pitch;
  float loss = 0;
  const auto outputs_of = [&](int column) {  // -infinity behind the last
    float4 four = __ldcg(reinterpret_cast<const float4*>(z + column));
    if (column + 3 >= outputs) {
      if (column >= outputs) four.x = -INFINITY;
      if (column + 1 >= outputs) four.y = -INFINITY;
      if (column + 2 >= outputs) four.z = -INFINITY;
      four.w = -INFINITY;
    }
    return four;
  };
  if constexpr (kLoss == Loss::kCrossEntropy) {
    // The first 128 outputs stay in registers; others come from the L2 each time.
    const std::int32_t label = __ldg(a.labels + row.sample);
    const float4 kept =
        4 * lane < pitch ? outputs_of(4 * lane) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    const auto for_all = [&](const auto& work) {
      work(4 * lane, kept);
#pragma unroll 4
      for (int column = 4 * lane + 128; column < pitch; column += 128) work(column, outputs_of(column));
    };
    float largest = -INFINITY, sum = 0;
    for_all([&](int, const float4& four) {
      largest = fmaxf(fmaxf(largest, fmaxf(four.x, four.y)), fmaxf(four.z, four.w));
    });
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      largest = fmaxf(largest, machine::shuffle_xor(largest, distance));
    const float of_label = lane == 0 ? __ldcg(z + label) : 0.0f;
    for_all([&](int, const float4& four) {
      sum += (expf(four.x - largest) + expf(four.y - largest)) +
             (expf(four.z - largest) + expf(four.w - largest));
    });
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += machine::shuffle_xor(sum, distance);
    if (lane == 0) loss = rules::cross_entropy(sum, of_label - largest);
    const float inverse = 1 / sum;
    const auto gradient = [&](float output, int column) {
      return rules::cross_entropy_gradient(expf(output - largest) * inverse, column == label) *
             a.gradient_scale;
    };
    for_all([&](int column, const float4& four) {
      if (column < pitch)
        store(column, gradient(four.x, column), gradient(four.y, column + 1), gradient(four.z, column + 2),
              gradient(four.w, column + 3));
    });
  } else {
    // Of 512 columns all are asked for before any is needed: a round trip to the L2 takes longer than all that is done with them.
    constexpr int kQuads = 4;
    const float* targets = a.targets + row.sample * outputs;
    float sum = 0;
#pragma unroll 1
    for (int begin = 4 * lane; begin < pitch; begin += 128 * kQuads) {
      float4 four[kQuads];
      float wanted[kQuads][4];
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        const int column = begin + 128 * quad;
        four[quad] =
            column < pitch ? __ldcg(reinterpret_cast<const float4*>(z + column)) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          wanted[quad][i] = column + i < outputs ? __ldg(targets + column + i) : 0.0f;
      }
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        const int column = begin + 128 * quad;
        if (column >= pitch) continue;
        const auto gradient = [&](float output, int i) {
          if (column + i >= outputs) return 0.0f;
          const rules::LossTerm term = rules::loss_term(kLoss, output, wanted[quad][i]);
          sum += term.loss;
          return term.gradient * a.gradient_scale;
        };
        const float x = gradient(four[quad].x, 0), y = gradient(four[quad].y, 1),
                    third = gradient(four[quad].z, 2), w = gradient(four[quad].w, 3);
        store(column, x, y, third, w);
      }
    }
    loss = sum / static_cast<float>(outputs);
  }
  return loss;
}

}  // namespace headroom::tiled
