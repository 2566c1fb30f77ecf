// A last layer of at most 16 classes for large batches, in fp16 and bf16: what it costs is to read its inputs and to write
// their gradient, so it is two kernels that do nothing else twice: logits, loss and their gradient in one, both gradients
// of the layer in the other.
//
// A constructor throws std::invalid_argument with the values if shapes do not fit together; queue_...() launch. Everything
// writes the same bits every time.
#pragma once

#include "device/stream.h"
#include "layered/formats.h"
#include "layered/kernels.h"
#include "layered/matrix.h"

namespace headroom::layered {

inline constexpr int kNarrowClasses = 16;  // the most that one product of the tensor cores holds

template <class Format>
class NarrowLayer {
 public:
  using Value = typename Format::Value;
  /// How many losses queue_forward() leaves, each of 16 rows: their mean is the batch's.
  static std::int64_t losses(std::int64_t batch) { return (batch + 15) / 16; }
  static std::int64_t workspace_values(std::int64_t batch, std::int64_t classes, std::int64_t in);

  /// inputs [batch, in], stored hidden values; masters and copy [classes, in], behind each the bias [padded(classes)];
  /// gradient [batch, classes]; input_gradient [batch, in]; workspace [workspace_values()].
  NarrowLayer(Matrix<const Value> inputs, Matrix<float> masters, Matrix<Value> copy, Matrix<Value> gradient,
              Matrix<Value> input_gradient, float* workspace);

  /// gradient and losses as loss_gradient() makes them from the layer's logits; labels as there.
  void queue_forward(const std::int32_t* labels, const StepState* state, float gradient_scale, float* losses,
                     Stream& stream) const;
  /// input_gradient = gradient * copy where inputs > 0, else 0; sums of the weight gradient's parts.
  void queue_backward(Stream& stream) const;
  /// One SGD step of masters and copy, bias included, from these sums.
  PartsUpdate<Format> update() const;

 private:
  Matrix<const Value> inputs_;
  Matrix<float> masters_;
  Matrix<Value> copy_, gradient_, input_gradient_;
  float* workspace_;
  int parts_;
  std::int64_t part_rows_;
};

}  // namespace headroom::layered
