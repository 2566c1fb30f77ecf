// The last layer's outputs, the loss of each row and its gradient: in the registers of one tile where that holds all outputs, else by
// way of device memory.
#pragma once

#include "rules/loss.cuh"
#include "tiled/tile.cuh"

namespace headroom::tiled {

/// A row of the batch of this step, and its place in the data set.
struct SampleRow {
  int row;
  bool inside;
  std::int64_t sample;
  MACHINE_DEVICE SampleRow(const Arguments& a, const StepPlace& step, int row_of_batch)
      : row(row_of_batch),
        inside(row_of_batch < a.batch),
        sample(std::int64_t{step.batch} * a.batch + (inside ? row_of_batch : 0)) {}
};

/// Sum over the four lanes that share a row, and the largest of what they have.
MACHINE_DEVICE float sum_of_row(float value) {
  value += machine::shuffle_xor(value, 1);
  return value + machine::shuffle_xor(value, 2);
}
MACHINE_DEVICE float largest_of_row(float value) {
  value = fmaxf(value, machine::shuffle_xor(value, 1));
  return fmaxf(value, machine::shuffle_xor(value, 2));
}

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
  largest = largest_of_row(largest);
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
  sum = sum_of_row(sum);
  of_label = sum_of_row(of_label);
  const float inverse = 1 / sum;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int column = 8 * j + first;
    z[j].x = rules::cross_entropy_gradient(z[j].x * inverse, label == column) * scale;
    z[j].y = rules::cross_entropy_gradient(z[j].y * inverse, label == column + 1) * scale;
  }
  return rules::cross_entropy(sum, of_label);
}

/// The same with a loss over targets.
template <int kPieces>
MACHINE_DEVICE float loss_of_row(float2 (&z)[kPieces], Loss loss, int outputs, int first,
                                 const float* targets, float scale) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 8 * j + first + i;
      float& value = i == 0 ? z[j].x : z[j].y;
      if (column < outputs) {
        const rules::LossTerm term = rules::loss_term(loss, value, targets[column]);
        value = term.gradient * scale;
        sum += term.loss;
      } else {
        value = 0;
      }
    }
  return sum_of_row(sum) / static_cast<float>(outputs);
}

/// A thread's two rows of a tile that holds all outputs, with what is fetched for their loss.
template <class S>
struct OutputRows {
  static constexpr int kPieces = kOutputsOfTile / 8;  // two columns of a row each
  SampleRow of[2];
  int first;  // column
  float2 biases[kPieces];
  std::int32_t labels[2];

  MACHINE_DEVICE OutputRows(const Arguments& a, const Task& task, const Worker<S>& worker,
                            const StepPlace& step)
      : of{{a, step, S::kRows * task.row + worker.row_of_tile()},
           {a, step, S::kRows * task.row + worker.row_of_tile() + 8}},
        first(worker.lane().first_column()),
        labels{} {}

  MACHINE_DEVICE void load(const Arguments& a, const LayerArguments& last) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      biases[j] = __ldcg(reinterpret_cast<const float2*>(last.bias + 8 * j + first));
    if (a.loss != Loss::kCrossEntropy) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) labels[half] = a.labels[of[half].sample];
  }
  /// held = the loss's gradient, rounded, zero behind the last output. Returns the loss of the warp's rows.
  template <class Format>
  MACHINE_DEVICE float finish(const Arguments& a, const LayerArguments& last,
                              const float (&sums)[4 * kPieces], std::uint32_t (&held)[2 * kPieces]) const {
    float loss = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 z[kPieces];
#pragma unroll
      for (int j = 0; j < kPieces; ++j)
        z[j] = make_float2(sums[4 * j + 2 * half] + biases[j].x, sums[4 * j + 2 * half + 1] + biases[j].y);
      const float of_row = a.loss == Loss::kCrossEntropy
                               ? cross_entropy_of_row(z, last.out, first, labels[half], a.gradient_scale)
                               : loss_of_row(z, a.loss, last.out, first,
                                             a.targets + of[half].sample * last.out, a.gradient_scale);
      if (of[half].inside && first == 0) loss += of_row;
#pragma unroll
      for (int j = 0; j < kPieces; ++j) held[2 * j + half] = Format::pack(z[j].x, z[j].y);
    }
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) loss += machine::shuffle_xor(loss, distance);
    return loss;
  }
};

/// The loss of a warpgroup's rows, from each warp's, to where the step's is added up: that of `rows` rows from `first_row` on.
template <class S>
MACHINE_DEVICE void keep_loss(const Arguments& a, const Worker<S>& worker, const StepPlace& step,
                              int first_row, int rows, float of_warp) {
  float* of_warps = worker.memory.sums[worker.warpgroup()];
  worker.meet();  // whoever read them before has
  if (worker.lane().lane == 0) of_warps[worker.lane().warp] = of_warp;
  worker.meet();
  if (worker.leads() && first_row < a.batch)
    a.loss_sums[std::int64_t{step.parity} * a.loss_parts + first_row / rows] =
        (of_warps[0] + of_warps[1]) + (of_warps[2] + of_warps[3]);
}

/// A tile of many outputs, to device memory.
template <class S, class Format>
MACHINE_DEVICE void outputs_tile(const Arguments& a, const Task& task, Worker<S>& worker) {
  const LayerArguments& layer = a.layer[task.layer];
  float sums[S::kSums];
  forward_sums<S, Format>(layer, task, worker, sums);
  const int row = S::kRows * task.row + worker.row_of_tile();
#pragma unroll
  for (int j = 0; j < S::kColumns / 8; ++j) {
    const int column = S::kColumns * task.column + 8 * j + worker.lane().first_column();
    if (column >= a.outputs_pitch) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* to = a.outputs + std::int64_t{row + 8 * half} * a.outputs_pitch + column;
      *reinterpret_cast<float2*>(to) = make_float2(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
    }
  }
  worker.meet();
  if (worker.leads()) signal(a, task, 0, 1);
}

/// Loss and gradient of a few rows of many outputs, kRowsOfLoss for each warpgroup. A warp takes a row at a time: what softmax needs of
/// it, then each value's gradient. Both times its outputs come from the L2.
template <class S, class Format>
MACHINE_DEVICE void loss_of_rows(const Arguments& a, const Task& task, Worker<S>& worker,
                                 const StepPlace& step) {
  const int outputs = a.layer[task.layer].out, pitch = a.outputs_pitch, lane = worker.lane().lane;
  const int first_row = S::kRows * task.row + machine::kTileRows * worker.group() + kRowsOfLoss * task.column;
  wait_together(a, worker, WaitFor::kOutputs, task.rows, step);
  mark(worker, &TaskTimes::first_slab);
  const auto outputs_of = [&](const float* z, int column) {  // -infinity behind the last
    float4 four = __ldcg(reinterpret_cast<const float4*>(z + column));
    if (column + 3 >= outputs) {
      if (column >= outputs) four.x = -INFINITY;
      if (column + 1 >= outputs) four.y = -INFINITY;
      if (column + 2 >= outputs) four.z = -INFINITY;
      four.w = -INFINITY;
    }
    return four;
  };
  float loss = 0;
  for (int of_part = worker.lane().warp; of_part < kRowsOfLoss; of_part += 4) {
    const SampleRow row(a, step, first_row + of_part);
    if (!row.inside) continue;
    const float* z = a.outputs + std::int64_t{row.row} * pitch;
    auto* to = reinterpret_cast<uint2*>(a.output_gradient + std::int64_t{row.row} * pitch);
    if (a.loss == Loss::kCrossEntropy) {
      float largest = -INFINITY, sum = 0;
#pragma unroll 4
      for (int column = 4 * lane; column < pitch; column += 128) {
        const float4 four = outputs_of(z, column);
        largest = fmaxf(fmaxf(largest, fmaxf(four.x, four.y)), fmaxf(four.z, four.w));
      }
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2)
        largest = fmaxf(largest, machine::shuffle_xor(largest, distance));
#pragma unroll 4
      for (int column = 4 * lane; column < pitch; column += 128) {
        const float4 four = outputs_of(z, column);
        sum += (expf(four.x - largest) + expf(four.y - largest)) +
               (expf(four.z - largest) + expf(four.w - largest));
      }
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) sum += machine::shuffle_xor(sum, distance);
      const std::int32_t label = a.labels[row.sample];
      if (lane == 0) loss += rules::cross_entropy(sum, __ldcg(z + label) - largest);
      const float inverse = 1 / sum;
      const auto gradient = [&](float output, int column) {
        return rules::cross_entropy_gradient(expf(output - largest) * inverse, column == label) *
               a.gradient_scale;
      };
#pragma unroll 4
      for (int column = 4 * lane; column < pitch; column += 128) {
        const float4 four = outputs_of(z, column);
        to[column / 4] = make_uint2(Format::pack(gradient(four.x, column), gradient(four.y, column + 1)),
                                    Format::pack(gradient(four.z, column + 2), gradient(four.w, column + 3)));
      }
    } else {
      const float* targets = a.targets + row.sample * outputs;
      const auto gradient = [&](float output, int column) {
        if (column >= outputs) return 0.0f;
        const rules::LossTerm term = rules::loss_term(a.loss, output, targets[column]);
        loss += term.loss / static_cast<float>(outputs);
        return term.gradient * a.gradient_scale;
      };
      for (int column = 4 * lane; column < pitch; column += 128) {
        const float4 four = __ldcg(reinterpret_cast<const float4*>(z + column));
        const float of[4] = {gradient(four.x, column), gradient(four.y, column + 1),
                             gradient(four.z, column + 2), gradient(four.w, column + 3)};
        to[column / 4] = make_uint2(Format::pack(of[0], of[1]), Format::pack(of[2], of[3]));
      }
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) loss += machine::shuffle_xor(loss, distance);
  mark(worker, &TaskTimes::products);
  keep_loss<S>(a, worker, step, first_row, kRowsOfLoss, loss);
  worker.meet();
  if (worker.leads()) signal(a, task, 0, 1);
}

}  // namespace headroom::tiled
