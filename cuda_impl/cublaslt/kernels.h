// What no epilogue of the library offers under the precision contract: plain kernels around the products.
//
// `Format` is one of layered's. Rows are padded to layered::padded() values; all widths here are padded ones, so
// every row is whole vectors. Launchers are asynchronous, throw std::invalid_argument for shapes that do not fit
// and check the launch.
#pragma once

#include <cstdint>

#include "core/workload.h"
#include "device/stream.h"
#include "layered/formats.h"
#include "layered/matrix.h"

namespace headroom::cublaslt {

/// Bits from column to column of a ReLU mask, as the library wants them.
inline std::int64_t mask_pitch(std::int64_t width) { return (width + 127) / 128 * 128; }

/// batches_out[s] = inputs of batch (state->batch + s) mod batches, for s < count; `batch_values` (a multiple of
/// 8) values a batch.
template <class Format>
void gather_batches(const typename Format::Value* inputs, const layered::StepState* state,
                    std::int64_t batches, std::int64_t batch_values, std::int64_t count,
                    typename Format::Value* batches_out, Stream& stream);

/// hidden = round(relu(sums + bias)), all [batch, width] and [width]; mask, if not null, gets one bit for each
/// stored value over zero.
template <class Format>
void activate(const float* sums, const float* bias, typename Format::Value* hidden, std::uint32_t* mask,
              std::int64_t batch, std::int64_t width, Stream& stream);

/// gradient = 0 where hidden is not over zero; both [batch, width].
template <class Format>
void apply_mask(typename Format::Value* gradient, const typename Format::Value* hidden, std::int64_t batch,
                std::int64_t width, Stream& stream);

/// The same with any activation, and without a mask. `kept`, if not null, gets what it is applied to, rounded like hidden; it may be
/// `sums` where Format::Value is fp32.
template <class Format>
void activate_other(Activation activation, const float* sums, const float* bias,
                    typename Format::Value* hidden, typename Format::Value* kept, std::int64_t batch,
                    std::int64_t width, Stream& stream);

/// gradient = round(unrounded times the activation's slope); all [batch, width]. `kept` as in rules::slope(); `unrounded` may be
/// `gradient` where Format::Value is fp32.
template <class Format>
void pass_back(Activation activation, const float* unrounded, const typename Format::Value* kept,
               typename Format::Value* gradient, std::int64_t batch, std::int64_t width, Stream& stream);

/// How many parts of the batch the bias gradients are summed in.
int bias_parts(std::int64_t batch);

/// partial_sums[p * stride + column] = sum over part p of the batch of gradient [batch, width].
template <class Format>
void sum_columns(const typename Format::Value* gradient, std::int64_t batch, std::int64_t width, int parts,
                 float* partial_sums, std::int64_t stride, Stream& stream);

/// biases[i] -= factor * sum over the parts of partial_sums[p * count + i].
void update_biases(float* biases, const float* partial_sums, int parts, std::int64_t count, float factor,
                   Stream& stream);

/// sums[i] = sum over the parts of partial_sums[p * count + i].
void sum_parts(const float* partial_sums, int parts, std::int64_t count, float* sums, Stream& stream);

}  // namespace headroom::cublaslt
