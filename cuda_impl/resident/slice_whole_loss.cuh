// Softmax and the logits' gradient of rows in the four lanes of a quad, as the kernels with whole sums have them in registers.
#pragma once

#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_arguments.h"
#include "resident/slice_formats.cuh"
#include "resident/softmax.cuh"

namespace headroom::resident {

/// Of lane (g, t), of each of its rows: classes 2t, 2t + 1, 8 + 2t and 9 + 2t.
template <int kRows>
struct RowsOfLoss {
  float gradient[kRows][4], below[kRows][4], row_sum[kRows];

  MACHINE_DEVICE static int class_of(int i, int t) { return 8 * (i >> 1) + 2 * t + (i & 1); }

  /// The bias of this lane's classes; those that are not there have no chance.
  struct Bias {
    float2 low, high;
  };
  MACHINE_DEVICE static Bias load_bias(const float* bias, int classes, int t) {
    float2 two[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      two[i] = reinterpret_cast<const float2*>(bias)[4 * i + t];
      if (class_of(2 * i, t) >= classes) two[i].x = -INFINITY;
      if (class_of(2 * i + 1, t) >= classes) two[i].y = -INFINITY;
    }
    return {two[0], two[1]};
  }

  /// low, high: logits of both rows as a product leaves them, two classes of the first row, then of the next. Rows beyond
  /// the batch have no gradient.
  MACHINE_DEVICE static RowsOfLoss of(const float (&low)[2 * kRows], const float (&high)[2 * kRows],
                                      const int (&label)[kRows], const int (&row)[kRows], int batch,
                                      float gradient_scale, int t) {
    RowsOfLoss rows;
    auto& power = rows.gradient;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float logit[4] = {low[2 * i], low[2 * i + 1], high[2 * i], high[2 * i + 1]};
      const float highest = quad_maximum(fmaxf(fmaxf(logit[0], logit[1]), fmaxf(logit[2], logit[3])));
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        rows.below[i][c] = logit[c] - highest;
        power[i][c] = exponential(rows.below[i][c]);
      }
      rows.row_sum[i] = quad_sum((power[i][0] + power[i][1]) + (power[i][2] + power[i][3]));
      const float inverse = row[i] < batch ? divide(gradient_scale, rows.row_sum[i]) : 0.0f;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        power[i][c] = power[i][c] * inverse - (class_of(c, t) == label[i] ? gradient_scale : 0.0f);
    }
    return rows;
  }

  /// What the loss needs of them, for who makes it: the row's sum and its label's distance to the highest.
  MACHINE_DEVICE void keep(float2* rows, const int (&label)[kRows], const int (&row)[kRows], int t) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float distance = 0;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (class_of(c, t) == label[i]) distance = below[i][c];
      distance = quad_sum(distance);
      if (t == 0) rows[row[i]] = make_float2(row_sum[i], distance);
    }
  }
};
using TwoRowsOfLoss = RowsOfLoss<2>;

}  // namespace headroom::resident
