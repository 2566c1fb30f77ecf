// Products for large batches of wide networks, in fp16 and bf16 on compute capability 9.0: wide.cuh is the kernel.
//
// Each class is one product of a layer with what follows it: its tensor maps are made when it is constructed, so it
// belongs to set-up, and queue() launches. All write the same bits every time. Constructors take any shape and throw
// std::invalid_argument with the values if matrices do not fit together; where the kernel is worth it is for
// wide_product_pays() and wide_gradient_pays() to say.
#pragma once

#include <cuda.h>

#include <optional>

#include "device/stream.h"
#include "layered/formats.h"
#include "layered/kernels.h"
#include "layered/matrix.h"
#include "layered/wide_walk.h"

namespace headroom::layered {

/// Whether the current device runs these kernels: they are machine code for compute capability 9.0.
bool wide_products_run();
/// The rule for forward and input gradient [batch, columns] over `inner`: at least half as many tiles as
/// multiprocessors, at least half of the last tile's columns in use, and an inner index of two slabs or more.
bool wide_product_pays(std::int64_t batch, std::int64_t columns, std::int64_t inner);
/// The rule for weight gradients [out, in] over the batch: the same, where a walk of at least 512 samples a part may be
/// split to make more units.
bool wide_gradient_pays(std::int64_t batch, std::int64_t out, std::int64_t in);
/// How many parts that walk is split into.
int wide_gradient_parts(std::int64_t batch, std::int64_t out, std::int64_t in);

/// What the kernel reads beside the matrices; each form fills in its own.
struct WideArguments {
  CUtensorMap a, b, result;  // factors [rows, inner] and [columns, inner], either way round; 16-bit result
  WideWalk walk;
  const StepState* state;  // null, or whose batch the layer's inputs are
  std::int64_t batch;
  const float* bias;         // [padded columns]
  std::uint32_t* positive;   // positive_words()
  std::int64_t rows, pitch;  // of masters and parts; pitch: padded columns
  float* masters;            // [rows, pitch]
  void* result_rows;         // the 16-bit result once more
  float* parts;              // [parts, rows * pitch]
  float* bias_parts;         // [parts * tile columns, padded rows]
  std::int64_t bias_stride;  // padded rows
  float learning_rate, inverse_loss_scale;
};

/// hidden = relu(inputs * weights^T + bias), rounded, and `positive` [positive_words(batch, out)] which of it is
/// positive. Shapes as forward_hidden() has them.
template <class Format>
class WideForward {
 public:
  using Value = typename Format::Value;
  WideForward(Matrix<const Value> inputs, const StepState* state, Matrix<const Value> weights,
              const float* bias, Matrix<Value> hidden, std::uint32_t* positive);
  /// `early`: the kernel may be set up while the one before it ends, as all others here may. Not where the stream waits
  /// for another one's.
  void queue(Stream& stream, bool early = true) const;

 private:
  WideArguments arguments_{};
  int blocks_ = 0;
};

/// input_gradient = gradient * weights where `positive` says so, else 0, rounded. gradient [batch, out]; weights
/// [out, in]; positive of the layer's inputs [batch, in]; input_gradient [batch, in].
template <class Format>
class WideInputGradient {
 public:
  using Value = typename Format::Value;
  WideInputGradient(Matrix<const Value> gradient, Matrix<const Value> weights, std::uint32_t* positive,
                    Matrix<Value> input_gradient);
  void queue(Stream& stream) const;

 private:
  WideArguments arguments_{};
  int blocks_ = 0;
};

/// One SGD step of a layer: masters -= learning_rate * inverse_loss_scale * (gradient^T * inputs), copy = the new
/// masters rounded as weights are, and the same of the bias. gradient [batch, out]; inputs as forward_hidden() has
/// them; masters and copy [out, in]; bias [padded(out)].
/// With one part the update is made where the sums are; with more, and for the bias, sums of the parts are left in
/// `workspace` [workspace_values()] and a second kernel adds them up in their order.
template <class Format>
class WideWeightUpdate {
 public:
  using Value = typename Format::Value;
  static std::int64_t workspace_values(std::int64_t batch, std::int64_t out, std::int64_t in, int parts);
  WideWeightUpdate(Matrix<const Value> gradient, Matrix<const Value> inputs, const StepState* state,
                   Matrix<float> masters, Matrix<Value> copy, float* bias, float learning_rate,
                   float inverse_loss_scale, int parts, float* workspace);
  /// Sums, and the weights where they are made.
  void queue_product(Stream& stream) const;
  /// What is left of the update; `also`: more of that kind.
  void queue_update(Stream& stream, std::optional<PartsUpdate<Format>> also = std::nullopt) const;

 private:
  WideArguments arguments_{};
  int blocks_ = 0;
  template <class Work>
  void with_kernel(const Work& work) const;
  int columns_ = 0;  // of a tile
  Value* copy_ = nullptr;
  float* bias_ = nullptr;
};

}  // namespace headroom::layered
