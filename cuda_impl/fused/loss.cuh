// Softmax cross-entropy of a tile's logits and its gradient, in the registers of a product's sums.
//
// The four lanes of a quad hold the logits of two rows. More than one group of classes is gone over twice: largest
// logit and sum of exponentials of all groups first, then the gradient group by group.
#pragma once

#include "fused/warpgroup.cuh"

namespace headroom::fused {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

/// The two rows of a thread, and what is known of their logits so far. The total is the thread's own share.
struct RowLogits {
  int label[2];  // -1: not a row of the batch
  float highest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, own[2] = {0, 0};
};

FUSED_DEVICE float quad_maximum(float value) {
  value = fmaxf(value, shuffle_xor(value, 1));
  return fmaxf(value, shuffle_xor(value, 2));
}
FUSED_DEVICE float quad_sum(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

/// logits: columns first_class on.
template <int kCount>
FUSED_DEVICE void add_logits(RowLogits& rows, const float (&logits)[kCount], int first_class,
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
FUSED_DEVICE float finish_logits(RowLogits& rows, const Lane& at) {
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
FUSED_DEVICE void logit_gradient(const RowLogits& rows, const float (&logits)[2 * kPairs], int first_class,
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

}  // namespace headroom::fused
