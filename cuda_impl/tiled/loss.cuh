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
    if (8 * j >= outputs) continue;
    const int column = 8 * j + first;
    if (label == column) of_label = z[j].x - largest;
    if (label == column + 1) of_label = z[j].y - largest;
    z[j].x = column < outputs ? expf(z[j].x - largest) : 0.0f;
    z[j].y = column + 1 < outputs ? expf(z[j].y - largest) : 0.0f;
    sum += z[j].x + z[j].y;
  }
  sum = sum_of_row(sum);
  of_label = sum_of_row(of_label);
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (8 * j >= outputs) continue;
    const int column = 8 * j + first;
    z[j].x = rules::cross_entropy_gradient(z[j].x / sum, label == column) * scale;
    z[j].y = rules::cross_entropy_gradient(z[j].y / sum, label == column + 1) * scale;
  }
  return rules::cross_entropy(sum, of_label);
}

/// The same with a loss over targets.
template <int kPieces>
MACHINE_DEVICE float loss_of_row(float2 (&z)[kPieces], Loss loss, int outputs, int first,
                                 const float* targets, float scale) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const int column = 8 * j + first;
    const auto one = [&](float& value, int of) {
      if (of >= outputs) return;
      const rules::LossTerm term = rules::loss_term(loss, value, targets[of]);
      value = term.gradient * scale;
      sum += term.loss;
    };
    one(z[j].x, column);
    one(z[j].y, column + 1);
  }
  return sum_of_row(sum) / static_cast<float>(outputs);
}

/// The loss of a warpgroup's 64 rows, from each warp's, to where the step's is added up. Behind it a meeting must follow before
/// memory.sums is used again.
template <class S>
MACHINE_DEVICE void keep_loss(const Arguments& a, const Task& task, const Worker<S>& worker,
                              const StepPlace& step, float of_warp) {
  float* of_warps = worker.memory.sums[worker.warpgroup];
  worker.meet();  // whoever read them before has
  if (worker.lane.lane == 0) of_warps[worker.lane.warp] = of_warp;
  worker.meet();
  if (worker.leads()) {
    const int part = S::kGroups * task.row + worker.group;
    if (part < a.loss_parts)
      a.loss_sums[std::int64_t{step.parity} * a.loss_parts + part] =
          (of_warps[0] + of_warps[1]) + (of_warps[2] + of_warps[3]);
  }
}

/// A tile that holds all outputs of its rows: loss and gradient from registers.
template <class S, class Format>
MACHINE_DEVICE void output_loss_tile(const Arguments& a, const Task& task, Worker<S>& worker,
                                     const StepPlace& step, TaskTimes& times) {
  constexpr int kPieces = kOutputsOfTile / 8;  // two columns of a row each
  const LayerArguments& layer = a.layer[task.layer];
  const int outputs = layer.out, first = worker.lane.first_column();
  const SampleRow rows[2] = {{a, step, S::kRows * task.row + worker.row_of_tile()},
                             {a, step, S::kRows * task.row + worker.row_of_tile() + 8}};
  float sums[S::kSums], none[4];
  float2 biases[kPieces];
  std::int32_t labels[2] = {};
  worker.take_turn();
  multiply_slabs<S, Format, Factor::kPlain, Factor::kPlain, false>(
      worker, machine::uniform(task.slabs), sums, none, [&] {
        mark(times.first_slab, a);
#pragma unroll
        for (int j = 0; j < kPieces; ++j)
          biases[j] = __ldcg(reinterpret_cast<const float2*>(layer.bias + 8 * j + first));
        if (a.loss == Loss::kCrossEntropy)
          for (int half = 0; half < 2; ++half) labels[half] = a.labels[rows[half].sample];
      });
  worker.pass_turn();
  mark(times.products, a);
  float loss = 0;
  std::uint32_t held[S::kPairs] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float2 z[kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      z[j] = make_float2(sums[4 * j + 2 * half] + biases[j].x, sums[4 * j + 2 * half + 1] + biases[j].y);
    const float of_row = a.loss == Loss::kCrossEntropy
                             ? cross_entropy_of_row(z, outputs, first, labels[half], a.gradient_scale)
                             : loss_of_row(z, a.loss, outputs, first, a.targets + rows[half].sample * outputs,
                                           a.gradient_scale);
    if (rows[half].inside && first == 0) loss += of_row;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) held[2 * j + half] = Format::pack(z[j].x, z[j].y);
  }
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) loss += machine::shuffle_xor(loss, distance);
  keep_loss<S>(a, task, worker, step, loss);
  store_tile<S>(a, task, worker, held, layer.gradient, 0, S::kRows * task.row, 0, outputs);
}

/// A tile of many outputs, to device memory.
template <class S, class Format>
MACHINE_DEVICE void outputs_tile(const Arguments& a, const Task& task, Worker<S>& worker, TaskTimes& times) {
  const LayerArguments& layer = a.layer[task.layer];
  float sums[S::kSums], none[4];
  Biases<S> biases;
  worker.take_turn();
  multiply_slabs<S, Format, Factor::kPlain, Factor::kPlain, false>(worker, machine::uniform(task.slabs), sums,
                                                                   none, [&] {
                                                                     mark(times.first_slab, a);
                                                                     biases.load(layer, task, worker);
                                                                   });
  worker.pass_turn();
  mark(times.products, a);
  const int row = S::kRows * task.row + worker.row_of_tile();
#pragma unroll
  for (int j = 0; j < S::kColumns / 8; ++j) {
    const int column = S::kColumns * task.column + 8 * j + worker.lane.first_column();
    if (column >= a.outputs_pitch) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* to = a.outputs + std::int64_t{row + 8 * half} * a.outputs_pitch + column;
      *reinterpret_cast<float2*>(to) =
          make_float2(sums[4 * j + 2 * half] + biases.of[j].x, sums[4 * j + 2 * half + 1] + biases.of[j].y);
    }
  }
  worker.meet();
  if (worker.leads()) signal<S>(a, task);
}

/// What softmax needs of a row: its largest output and the sum of the exponentials.
struct RowSoftmax {
  float largest, sum;
};

/// Loss and gradient of a warpgroup's 64 rows of many outputs. First each warp finds what softmax needs of its 16 rows, then each
/// thread takes pairs of columns down all rows.
template <class S, class Format>
MACHINE_DEVICE void loss_of_rows(const Arguments& a, const Task& task, Worker<S>& worker,
                                 const StepPlace& step, TaskTimes& times) {
  constexpr int kRowsOfWarp = 16;
  const int outputs = a.layer[task.layer].out, pitch = a.outputs_pitch, lane = worker.lane.lane;
  const int first_row = S::kRows * task.row + machine::kTileRows * worker.group;
  auto* softmax = reinterpret_cast<RowSoftmax*>(worker.memory.staging[worker.warpgroup]);  // of 64 rows
  if (lane == 0) wait_for_counter(worker.waiter, WaitFor::kOutputs, a, task.rows, step.of_launch);
  worker.meet();
  mark(times.first_slab, a);
  float loss = 0;
  if (a.loss == Loss::kCrossEntropy) {
    for (int of_warp = 0; of_warp < kRowsOfWarp; ++of_warp) {
      const int of_group = kRowsOfWarp * worker.lane.warp + of_warp;
      const SampleRow row(a, step, first_row + of_group);
      const float* z = a.outputs + std::int64_t{row.row} * pitch;
      float largest = -INFINITY, sum = 0;
      for (int column = lane; column < outputs; column += 32) largest = fmaxf(largest, __ldcg(z + column));
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2)
        largest = fmaxf(largest, machine::shuffle_xor(largest, distance));
      for (int column = lane; column < outputs; column += 32) sum += expf(__ldcg(z + column) - largest);
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) sum += machine::shuffle_xor(sum, distance);
      if (lane == 0) softmax[of_group] = {largest, sum};
      if (lane == 0 && row.inside)
        loss += rules::cross_entropy(sum, __ldcg(z + a.labels[row.sample]) - largest);
    }
    worker.meet();
  }
  const int rows = min(machine::kTileRows, a.batch - first_row);
  for (int column = 2 * (worker.thread % machine::kWarpgroup); column < pitch;
       column += 2 * machine::kWarpgroup)
    for (int of_group = 0; of_group < rows; ++of_group) {
      const SampleRow row(a, step, first_row + of_group);
      const float2 z =
          __ldcg(reinterpret_cast<const float2*>(a.outputs + std::int64_t{row.row} * pitch + column));
      float gradient[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float output = i == 0 ? z.x : z.y;
        if (column + i >= outputs) {
          gradient[i] = 0;
        } else if (a.loss == Loss::kCrossEntropy) {
          const float probability = expf(output - softmax[of_group].largest) / softmax[of_group].sum;
          gradient[i] = rules::cross_entropy_gradient(probability, a.labels[row.sample] == column + i) *
                        a.gradient_scale;
        } else {
          const rules::LossTerm term =
              rules::loss_term(a.loss, output, a.targets[row.sample * outputs + column + i]);
          gradient[i] = term.gradient * a.gradient_scale;
          loss += term.loss / static_cast<float>(outputs);
        }
      }
      *reinterpret_cast<std::uint32_t*>(a.output_gradient + std::int64_t{row.row} * pitch + column) =
          Format::pack(gradient[0], gradient[1]);
    }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) loss += machine::shuffle_xor(loss, distance);
  mark(times.products, a);
  keep_loss<S>(a, task, worker, step, loss);
  worker.meet();
  if (worker.leads()) signal<S>(a, task);
}

}  // namespace headroom::tiled
