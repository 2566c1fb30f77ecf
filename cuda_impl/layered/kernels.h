// The operations of one training step, as launchers: each checks shapes, picks tiles, launches and
// checks the launch.
//
// All are asynchronous on `stream`, write the same bits every time, and throw std::invalid_argument with the
// values if shapes do not fit together. `Format` is one of Fp32, Tf32, Fp16, Bf16 (formats.h).
#pragma once

#include <initializer_list>

#include "device/stream.h"
#include "layered/formats.h"
#include "layered/matrix.h"
#include "rules/optimizer.cuh"

namespace headroom::layered {

/// Where the blocks that share a tile's inner index leave their sums; forward and input gradient use it in
/// turn, so one is enough for a stream. See product.cuh.
struct SplitSums {
  float* values;       ///< [split_sum_values()]
  unsigned* arrivals;  ///< [split_sum_tiles()], zero between products
};
std::int64_t split_sum_values();  ///< for the current device
std::int64_t split_sum_tiles();

/// hidden = activated(inputs * weights^T + bias), rounded to Format::Value. inputs [batch, in], or with `state`
/// [batches * batch, in] of which batch state->batch is read; weights [out, in]; bias [padded(out)] fp32;
/// hidden [batch, out]. `sums` [batch, out], of hidden's pitch, gets what the activation is applied to, rounded likewise;
/// null where the slope is taken from the output (core/training_rules.h, slope_is_of_output()).
template <class Format>
void forward_hidden(Matrix<const typename Format::Value> inputs, const StepState* state,
                    Matrix<const typename Format::Value> weights, const float* bias, Activation activation,
                    Matrix<typename Format::Value> hidden, typename Format::Value* sums,
                    const SplitSums& split, Stream& stream);

/// logits = inputs * weights^T + bias in fp32; shapes as above, logits [batch, out].
template <class Format>
void forward_logits(Matrix<const typename Format::Value> inputs, const StepState* state,
                    Matrix<const typename Format::Value> weights, const float* bias, Matrix<float> logits,
                    const SplitSums& split, Stream& stream);

/// Softmax cross-entropy of each row and its gradient times `gradient_scale`, which holds 1 / batch and
/// fp16's loss scale. logits [batch, classes]; labels [batches * batch], batch state->batch is read; gradient
/// [batch, classes] rounded to Format::Value; row_losses [batch].
template <class Format>
void loss_gradient(Matrix<const float> logits, const std::int32_t* labels, const StepState* state,
                   float gradient_scale, Matrix<typename Format::Value> gradient, float* row_losses,
                   Stream& stream);

/// Mean squared error or binary cross-entropy of each row, a mean over its outputs, and its gradient times
/// `gradient_scale`, which holds 1 / (batch * outputs) and fp16's loss scale. outputs [batch, outputs]; targets
/// [batches * batch, outputs] without padding, batch state->batch is read; the rest as above.
template <class Format>
void loss_of_targets(Loss loss, Matrix<const float> outputs, const float* targets, const StepState* state,
                     float gradient_scale, Matrix<typename Format::Value> gradient, float* row_losses,
                     Stream& stream);

/// input_gradient = (gradient * weights) times the slope of `activation`, rounded to Format::Value. gradient [batch, out];
/// weights [out, in]; kept [batch, in], what forward_hidden() left for the layer below: its sums, or its outputs where it
/// left none; input_gradient [batch, in].
template <class Format>
void input_gradient(Matrix<const typename Format::Value> gradient,
                    Matrix<const typename Format::Value> weights, Activation activation,
                    Matrix<const typename Format::Value> kept, Matrix<typename Format::Value> input_gradient,
                    const SplitSums& split, Stream& stream);

/// How many partial sums weight_gradient() makes for this layer; over 1 only where the layer alone would
/// leave multiprocessors idle.
int weight_gradient_splits(Precision precision, std::int64_t batch, std::int64_t out, std::int64_t in);

/// weight_gradient = gradient^T * inputs, bias_gradient = column sums of gradient, both fp32, over the batch.
/// gradient [batch, out]; inputs as in forward_hidden(); weight_gradient [out, in]; bias_gradient [out].
/// With `splits` > 1, part s of the batch is summed into weight_gradient and bias_gradient + s * split_stride
/// values, to be added up by sum_splits().
template <class Format>
void weight_gradient(Matrix<const typename Format::Value> gradient,
                     Matrix<const typename Format::Value> inputs, const StepState* state,
                     Matrix<float> weight_gradient, float* bias_gradient, int splits,
                     std::int64_t split_stride, Stream& stream);

/// sum[i] = parts[i] + parts[split_stride + i] + ..., in this order; i < count, a multiple of 4.
void sum_splits(const float* parts, int splits, std::int64_t split_stride, float* sum, std::int64_t count,
                Stream& stream);

/// masters -= learning_rate * gradient * inverse_loss_scale, all [count] fp32; count a multiple of 4.
/// `copy` [count] gets the updated weights rounded for the products; null in fp32 and tf32,
/// which read the masters.
template <class Format>
void update(float* masters, const float* gradient, typename Format::Value* copy, std::int64_t count,
            float learning_rate, float inverse_loss_scale, Stream& stream);

/// *factors = those of the step that *state names.
void set_update_factors(const Optimizer& optimizer, const StepState* state, rules::UpdateFactors* factors,
                        Stream& stream);

/// The update of an optimizer with slots, all [count] fp32 (second_slot: null if there is one), by the step's factors;
/// the rest as in update().
template <class Format>
void update_with_slots(float* masters, const float* gradient, typename Format::Value* copy, float* first_slot,
                       float* second_slot, std::int64_t count, const rules::UpdateFactors* factors,
                       float inverse_loss_scale, Stream& stream);

/// Parameters, and `count_of_parts` gradients to be added up in their order, `part_stride` values from one to the next.
/// masters [count], copy [count] or null; counts are multiples of 4.
template <class Format>
struct PartsUpdate {
  float* masters;
  const float* parts;
  std::int64_t count_of_parts, part_stride;
  typename Format::Value* copy;
  std::int64_t count;
};
inline constexpr int kPartsUpdates = 3;  ///< at most, in one launch
/// update() of each with the sum of its parts. Fp16 and Bf16 only.
template <class Format>
void update_from_parts(std::initializer_list<PartsUpdate<Format>> updates, float learning_rate,
                       float inverse_loss_scale, Stream& stream);

/// losses[state->step mod losses_size] = sum of row_losses [batch] / batch;
/// then state moves on to the next step.
void finish_step(const float* row_losses, std::int64_t batch, float* losses, std::int64_t losses_size,
                 std::int64_t batches, StepState* state, Stream& stream);

/// *state = {step, step mod batches}.
void set_step(StepState* state, std::int64_t step, std::int64_t batches, Stream& stream);

/// rounded = source, rounded to Format::Value, with zero padding. source [rows, columns] without padding.
template <class Format>
void round_rows(const float* source, Matrix<typename Format::Value> rounded, Stream& stream);

/// copy = masters rounded as weights enter a product; both [count].
template <class Format>
void round_weights(const float* masters, typename Format::Value* copy, std::int64_t count, Stream& stream);

}  // namespace headroom::layered
