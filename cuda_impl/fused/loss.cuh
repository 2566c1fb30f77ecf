// Softmax cross-entropy of a tile's logits and its gradient, in the registers of a product's sums.
//
// The four lanes of a quad hold the logits of two rows. More than one group of classes is gone over twice: largest
// logit and sum of exponentials of all groups first, then the gradient group by group.
#pragma once

#include "fused/warpgroup.cuh"
#include "machine/numbers.cuh"
#include "machine/panels.cuh"
#include "machine/reductions.cuh"
#include "machine/thread.cuh"
#include "rules/loss.cuh"

namespace headroom::fused {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// The two rows of a thread, and what is known of their logits so far. The total is the thread's own share.
struct RowLogits {
  int label[2];  // -1: not a row of the batch
  float highest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, own[2] = {0, 0};
};

/// logits: columns first_class on.
template <int kCount>
MACHINE_DEVICE void add_logits(RowLogits& rows, const float (&logits)[kCount], int first_class,
                               const Lane& at) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float highest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
      highest = fmaxf(highest, fmaxf(logits[4 * j + 2 * half], logits[4 * j + 2 * half + 1]));
    highest = fmaxf(rows.highest[half], quad_maximum(highest));
    float total = rows.total[half] * exponential2((rows.highest[half] - highest) * kLog2E);
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float logit = logits[4 * j + 2 * half + c];
        total += exponential2((logit - highest) * kLog2E);
        if (first_class + 8 * j + at.first_column() + c == rows.label[half]) rows.own[half] = logit;
      }
    rows.total[half] = total;
    rows.highest[half] = highest;
  }
}

/// The loss of the thread's two rows, in one lane of each quad; total becomes the whole row's.
MACHINE_DEVICE float finish_logits(RowLogits& rows, const Lane& at) {
  float loss = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.total[half] = quad_sum(rows.total[half]);
    const float own = quad_sum(rows.own[half]);
    if (at.first_column() == 0 && rows.label[half] >= 0)
      loss += __log2f(rows.total[half]) * kLn2 + (rows.highest[half] - own);
  }
  return loss;
}

/// held = (softmax - one-hot) * scale, rounded; 0 in rows that are not of the batch.
template <class Format, int kPairs>
MACHINE_DEVICE void logit_gradient(const RowLogits& rows, const float (&logits)[2 * kPairs], int first_class,
                                   float scale, const Lane& at, std::uint32_t (&held)[kPairs]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float inverse = 1.0f / rows.total[half], row_scale = rows.label[half] >= 0 ? scale : 0.0f;
#pragma unroll
    for (int j = 0; j < kPairs / 2; ++j) {
      float pair[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float share =
            exponential2((logits[4 * j + 2 * half + c] - rows.highest[half]) * kLog2E) * inverse;
        const bool is_label = first_class + 8 * j + at.first_column() + c == rows.label[half];
        pair[c] = (share - (is_label ? 1.0f : 0.0f)) * row_scale;
      }
      held[2 * j + half] = Format::pack(pair[0], pair[1]);
    }
  }
}

/// Softmax cross-entropy of 16 logits of two rows in a quad; bias [16]. Returns this lane's share of the loss.
/// gradient: packed, (softmax - one-hot) * scale; bias_sums: of the rounded gradient, the thread's columns.
/// kShort: a fifth fewer instructions, and more registers.
template <class Format, bool kShort = false>
MACHINE_DEVICE float narrow_loss(float (&logits)[8], const int (&labels)[2], float scale, int first_column,
                                 std::uint32_t (&gradient)[4], float (&bias_sums)[4]) {
  float loss = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float value[4] = {logits[2 * half], logits[2 * half + 1], logits[4 + 2 * half], logits[5 + 2 * half]};
    const float highest = quad_maximum(fmaxf(fmaxf(value[0], value[1]), fmaxf(value[2], value[3])));
    float total = 0;
    bool is_label[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      is_label[i] = first_column + (i & 1) + 8 * (i >> 1) == labels[half];
      if constexpr (kShort) {
        if (is_label[i]) loss += highest - value[i];  // in the one lane that has it
        value[i] = exponential2(fmaf(value[i], kLog2E, highest * -kLog2E));
      } else {
        value[i] -= highest;
        if (is_label[i]) loss -= value[i];
        value[i] = exponential2(value[i] * kLog2E);
        total += value[i];
      }
    }
    if constexpr (kShort) total = (value[0] + value[1]) + (value[2] + value[3]);
    total = quad_sum(total);  // 1 to 16
    const bool there = labels[half] >= 0;
    const float row_scale = there ? scale : 0.0f;
    if constexpr (kShort) {
      if (first_column == 0 && there) loss += logarithm2(total) * kLn2;
      const float factor = reciprocal(total) * row_scale;
#pragma unroll
      for (int i = 0; i < 4; ++i) value[i] = fmaf(value[i], factor, is_label[i] ? -row_scale : 0.0f);
    } else {
      if (first_column == 0 && there) loss += __log2f(total) * kLn2;
      const float inverse = __fdividef(1.0f, total);
#pragma unroll
      for (int i = 0; i < 4; ++i) value[i] = (value[i] * inverse - (is_label[i] ? 1.0f : 0.0f)) * row_scale;
    }
    gradient[half] = Format::pack(value[0], value[1]);
    gradient[2 + half] = Format::pack(value[2], value[3]);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const float2 rounded = Format::unpack(gradient[2 * pair + half]);
      bias_sums[2 * pair] += rounded.x;
      bias_sums[2 * pair + 1] += rounded.y;
    }
  }
  return loss;
}

// The same in parts, for where each cycle until the gradient counts (pipeline.cuh): a thread's logits are columns 2t and
// 2t + 1 of its first row, of its second, and 8 further on the same, as exponents of 2, that is times log2 e.

/// values: 2 to the power of the exponents; totals: over the rows, the same bits in all lanes of a quad.
MACHINE_DEVICE void exponentials(const float (&exponents)[8], float (&values)[8], float (&totals)[2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = exponential2(exponents[i]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* of_row = values + 2 * half;
    const float own = (of_row[0] + of_row[1]) + (of_row[4] + of_row[5]);
    totals[half] = (own + shuffle_xor(own, 1)) + (shuffle_xor(own, 2) + shuffle_xor(own, 3));
  }
}

/// gradient: packed, (softmax - one-hot) * scale, 0 in rows without a label; totals: see exponentials().
/// The largest exponent is subtracted, in place, only where a total of the warp's rows is beyond what fp32 adds up without
/// loss. So lanes exchange values once, and not before the exponentials.
template <class Format>
MACHINE_DEVICE void narrow_gradient(float (&exponents)[8], const int (&labels)[2], float scale,
                                    int first_column, std::uint32_t (&gradient)[4], float (&totals)[2]) {
  constexpr float kMost = 0x1p60f, kLeast = 0x1p-60f;
  float values[8];
  exponentials(exponents, values, totals);
  const bool in_range = totals[0] < kMost && totals[0] > kLeast && totals[1] < kMost && totals[1] > kLeast;
  if (!__all_sync(~0u, in_range)) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* of_row = exponents + 2 * half;
      const float highest = quad_maximum(fmaxf(fmaxf(of_row[0], of_row[1]), fmaxf(of_row[4], of_row[5])));
#pragma unroll
      for (int i = 0; i < 4; ++i) of_row[(i & 1) + 4 * (i >> 1)] -= highest;
    }
    exponentials(exponents, values, totals);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float row_scale = labels[half] >= 0 ? scale : 0.0f;
    const float factor = reciprocal(totals[half]) * row_scale;
    float value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_label = first_column + (i & 1) + 8 * (i >> 1) == labels[half];
      value[i] = fmaf(values[2 * half + (i & 1) + 4 * (i >> 1)], factor, is_label ? -row_scale : 0.0f);
    }
    gradient[half] = Format::pack(value[0], value[1]);
    gradient[2 + half] = Format::pack(value[2], value[3]);
  }
}

/// This lane's share of the rows' losses, by what narrow_gradient() leaves.
MACHINE_DEVICE float losses_of_rows(const float (&exponents)[8], const float (&totals)[2],
                                    const int (&labels)[2], int first_column) {
  float loss = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (first_column == 0 && labels[half] >= 0) loss += logarithm2(totals[half]);
#pragma unroll
    for (int i = 0; i < 4; ++i)  // in the one lane that has it
      if (first_column + (i & 1) + 8 * (i >> 1) == labels[half])
        loss -= exponents[2 * half + (i & 1) + 4 * (i >> 1)];
  }
  return loss * kLn2;
}

/// The same with a loss over targets: outputs become the losses of each, and the gradient is (derivative) * scale, packed; both 0
/// behind the last output, and in rows with label -1.
template <class Format>
MACHINE_DEVICE void target_gradient(Loss loss, float (&outputs)[8], const float2 (&targets)[4],
                                    const int (&labels)[2], int output_count, float scale, int first_column,
                                    std::uint32_t (&gradient)[4]) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    float derivative[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float& output = outputs[2 * pair + c];
      const rules::LossTerm term = rules::loss_term(loss, output, c == 0 ? targets[pair].x : targets[pair].y);
      const bool there = labels[pair % 2] >= 0 && first_column + c + 8 * (pair / 2) < output_count;
      output = there ? term.loss : 0.0f;
      derivative[c] = there ? term.gradient * scale : 0.0f;
    }
    gradient[pair] = Format::pack(derivative[0], derivative[1]);
  }
}

/// sums: of the rounded gradient, the thread's columns.
template <class Format>
MACHINE_DEVICE void add_bias_gradient(const std::uint32_t (&gradient)[4], float (&sums)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 rounded = Format::unpack(gradient[i]);
    sums[i & 2] += rounded.x;
    sums[(i & 2) + 1] += rounded.y;
  }
}

}  // namespace headroom::fused
