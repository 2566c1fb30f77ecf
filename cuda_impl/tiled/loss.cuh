// The last layer's outputs, the loss of each row and its gradient: in the registers of one tile where that holds all outputs, else by
// way of device memory.
#pragma once

#include "tiled/loss_rows.cuh"
#include "tiled/tile.cuh"

namespace headroom::tiled {

/// A thread's two rows of a tile that holds all outputs, with what is fetched for their loss.
template <class S, Loss kLoss>
struct OutputRows {
  static constexpr int kPieces = kOutputsOfTile / 8;  // two columns of a row each
  SampleRow of[2];
  int first;  // column
  float2 biases[kPieces];
  std::int32_t labels[2];

  MACHINE_DEVICE OutputRows(const Arguments& a, const Task& task, const Worker<S>& worker,
                            const StepPlace& step)
      : of{{a, step, S::kRows * task.row + worker.row_of_tile(), joined_rows<S::kRanked>(a)},
           {a, step, S::kRows * task.row + worker.row_of_tile() + 8, joined_rows<S::kRanked>(a)}},
        first(worker.lane().first_column()),
        labels{} {}

  MACHINE_DEVICE void load(const Arguments& a, const LayerArguments& last) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      biases[j] = __ldcg(reinterpret_cast<const float2*>(last.bias + 8 * j + first));
    if constexpr (kLoss != Loss::kCrossEntropy) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) labels[half] = a.labels[of[half].sample];
  }
  /// held = the loss's gradient, rounded, zero behind the last output. Returns the loss of the lane's rows, in the first lane of a row.
  template <class Format>
  /// exact: the same before it was rounded, and zero outside of the batch.
  MACHINE_DEVICE float finish(const Arguments& a, const LayerArguments& last,
                              const float (&sums)[4 * kPieces],
                              std::uint32_t (&held)[S::kWordsOfPair * 2 * kPieces],
                              float (&exact)[4 * kPieces]) const {
    float2 z[2][kPieces];
    float of_row[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < kPieces; ++j)
        z[half][j] =
            make_float2(sums[4 * j + 2 * half] + biases[j].x, sums[4 * j + 2 * half + 1] + biases[j].y);
    // Both rows side by side: each is a chain of shuffles and functions.
    if constexpr (kLoss == Loss::kCrossEntropy) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        of_row[half] = cross_entropy_of_row(z[half], last.out, first, labels[half], a.gradient_scale);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        of_row[half] = loss_of_row<kLoss>(z[half], last.out, first, a.targets + of[half].sample * last.out,
                                          a.gradient_scale);
    }
    float loss = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (of[half].inside && first == 0) loss += of_row[half];
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        put_pair<Format>(held, 2 * j + half, z[half][j].x, z[half][j].y);
        exact[4 * j + 2 * half] = of[half].inside ? z[half][j].x : 0.0f;
        exact[4 * j + 2 * half + 1] = of[half].inside ? z[half][j].y : 0.0f;
      }
    }
    return loss;
  }
};

/// The loss of a warpgroup's rows, from each lane's, to where the step's is added up: that of `rows` rows from `first_row` on.
template <class S>
MACHINE_DEVICE void keep_loss(const Arguments& a, const Worker<S>& worker, const StepPlace& step,
                              int first_row, int rows, float loss) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) loss += machine::shuffle_xor(loss, distance);
  float* of_warps = worker.memory.sums[worker.warpgroup()];
  worker.meet();  // whoever read them before has
  if (worker.lane().lane == 0) of_warps[worker.lane().warp] = loss;
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
  if (worker.leads()) signal<S::kRanked>(a, task, worker.waiter.step, 0, 1);
}

/// In tf32: the gradient of kRowsOfLoss rows of many outputs from where it lies unrounded, a column a thread.
template <class S>
MACHINE_DEVICE void store_gradient_of_outputs(const Arguments& a, const Worker<S>& worker, int first_row) {
  const TurnedLayer& last = a.turned[a.layers - 1];
  const Rows& matrix = a.layer[a.layers - 1].gradient_rows;
  const int outputs = a.layer[a.layers - 1].out;
  auto* plain = static_cast<float*>(matrix.values);
  auto* turned = static_cast<float*>(last.gradient.values);
  const int rows = a.batch - first_row < kRowsOfLoss ? a.batch - first_row : kRowsOfLoss;
  if (rows > 0)
    for (int column = worker.thread() % machine::kWarpgroup; column < outputs;
         column += machine::kWarpgroup) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kRowsOfLoss; ++i) {
        if (i >= rows) break;
        const float value = __ldcg(a.outputs + std::int64_t{first_row + i} * a.outputs_pitch + column);
        const float rounded = machine::round_tf32(value);
        sum += value;
        __stcg(plain + std::int64_t{first_row + i} * matrix.pitch + column, rounded);
        __stcg(turned + std::int64_t{column} * last.gradient.pitch + first_row + i, rounded);
      }
      __stcg(last.bias_sums + std::int64_t{first_row / last.bias_unit} * last.bias_pitch + column, sum);
    }
}

/// Loss and gradient of a few rows of many outputs, kRowsOfLoss for each warpgroup. A warp takes a row at a time: what softmax needs of
/// it, then each value's gradient. Both times its outputs come from the L2.
template <class S, class Format, Loss kLoss>
MACHINE_DEVICE void loss_of_rows(const Arguments& a, const Task& task, Worker<S>& worker,
                                 const StepPlace& step) {
  const int outputs = a.layer[task.layer].out, pitch = a.outputs_pitch, lane = worker.lane().lane;
  const int first_row = S::kRows * task.row + machine::kTileRows * worker.group() + kRowsOfLoss * task.column;
  wait_together(a, worker, WaitFor::kOutputs, task.rows, step);
  mark(worker, &TaskTimes::first_slab);
  float loss = 0;
  for (int of_part = worker.lane().warp; of_part < kRowsOfLoss; of_part += 4) {
    const SampleRow row(a, step, first_row + of_part, joined_rows<S::kRanked>(a));
    if (!row.inside) continue;
    std::uint16_t* gradient = a.output_gradient;
    if constexpr (S::kRanked) gradient += step.parity * a.layer[task.layer].gradient_rows.slice;
    auto* to = reinterpret_cast<uint2*>(gradient + std::int64_t{row.row} * pitch);
    auto* exact =
        reinterpret_cast<float4*>(a.outputs + std::int64_t{row.row} * pitch);  // where the outputs were
    loss +=
        loss_of_outputs<kLoss>(a, row, outputs, lane, [&](int column, float x, float y, float z, float w) {
          if constexpr (S::kTf32)
            __stcg(exact + column / 4, make_float4(x, y, z, w));
          else
            to[column / 4] = make_uint2(Format::pack(x, y), Format::pack(z, w));
        });
  }
  if constexpr (S::kTf32) {
    worker.meet();
    store_gradient_of_outputs(a, worker, first_row);
  }
  mark(worker, &TaskTimes::products);
  keep_loss<S>(a, worker, step, first_row, kRowsOfLoss, loss);
  worker.meet();
  if (worker.leads()) signal<S::kRanked>(a, task, worker.waiter.step, 0, 1);
  if constexpr (S::kRanked) {
    const int rows = a.batch - first_row < kRowsOfLoss ? a.batch - first_row : kRowsOfLoss;
    send_rectangle<2>(a, a.layer[task.layer].gradient_rows, a.ranks.gradients[task.layer],
                      {step.parity, first_row, rows, 0, outputs}, worker.thread() % machine::kWarpgroup,
                      machine::kWarpgroup);
    tell_peers(a, worker, task, 1);
  }
}

}  // namespace headroom::tiled
