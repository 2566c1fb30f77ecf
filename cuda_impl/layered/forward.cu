// Forward product of one layer with bias and activation in its last instructions: y = activated(x * W^T + b).
//
// A block owns 32 x 64, 32 x 128, 128 x 64 or 128 x 128 elements of y (rows are samples, columns are outputs); product.cuh says
// how it walks along the inputs, and how several blocks share a walk.
//   in:    x [batch, in] and W [out, in], both with the inner index contiguous; bias [out] fp32
//   out:   y [batch, out] rounded for the next layer, or fp32 logits without activation for the last one; the sums
//          before the activation, rounded as y is, where its slope is taken from them
//   bytes: every weight once from device memory at batch 32 (4 bytes, 2 in fp16 and bf16);
//          x once a block from L2
// The sum, the bias and the activation are fp32; the only rounding is that of the stored value, and the backward
// pass takes the activation's slope from there.
#include "layered/kernels.h"
#include "layered/product.cuh"
#include "rules/activation.cuh"

namespace headroom::layered {
namespace {

template <class Format, class Tile>
using Forward = Product<Format, Tile, Storage::kInnerContiguous, Storage::kInnerContiguous>;

/// An activation other than ReLU, which the kernel has built in.
template <class Format, class Which>
struct OtherActivation {
  Which activation;
  typename Format::Value* sums;  // before the activation [batch, out], or null

  /// Of four neighbours, the first of which has place `at` in the matrix.
  __device__ void apply(float4& sum, std::int64_t at) const {
    if (sums != nullptr) store_rounded_quad<Format>(sums + at, sum);
    sum.x = rules::activated(activation.value, sum.x), sum.y = rules::activated(activation.value, sum.y);
    sum.z = rules::activated(activation.value, sum.z), sum.w = rules::activated(activation.value, sum.w);
  }
};

/// `other`: none or one.
template <class Format, class Tile, class... Other>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) forward_kernel(
    Operand<typename Format::Value> inputs /* [batch, in], or [batches * batch, in] with state */,
    const StepState* state, Operand<typename Format::Value> weights /* [out, in] */, std::int64_t in,
    const float* bias /* [padded(out)] */, typename Format::Value* hidden /* [batch, out], or null */,
    float* logits /* [batch, out], or null */, std::int64_t pitch, SplitSums split, Other... other) {
  const std::int64_t batch = inputs.outer, out = weights.outer;
  if (state != nullptr) inputs.data += state->batch * batch * inputs.pitch;
  using P = Forward<Format, Tile>;
  const std::int64_t first_row = P::first_row(), first_column = P::first_column();
  P::run_split(
      inputs, weights, first_row, first_column, in, split,
      [&](int /*tile_row*/, int tile_column) {
        const std::int64_t column = first_column + tile_column;
        return column < out ? *reinterpret_cast<const float4*>(bias + column) : float4{};
      },
      [&](int tile_row, int tile_column, float4 sum, float4 shift) {
        const std::int64_t row = first_row + tile_row, column = first_column + tile_column;
        if (row >= batch || column >= out) return;
        sum.x += shift.x, sum.y += shift.y, sum.z += shift.z, sum.w += shift.w;
        if (logits != nullptr) {
          store_quad(logits + row * pitch + column, sum);
          return;
        }
        if constexpr (sizeof...(other) == 0) {
          // The comparison is written so that NaN stays NaN and is seen in the loss.
          sum.x = sum.x < 0 ? 0 : sum.x, sum.y = sum.y < 0 ? 0 : sum.y;
          sum.z = sum.z < 0 ? 0 : sum.z, sum.w = sum.w < 0 ? 0 : sum.w;
        }
        (other.apply(sum, row * pitch + column), ...);
        store_rounded_quad<Format>(hidden + row * pitch + column, sum);
      });
}

template <class Format, class Tile, class... Other>
void launch(Matrix<const typename Format::Value> inputs, const StepState* state,
            Matrix<const typename Format::Value> weights, const float* bias, typename Format::Value* hidden,
            float* logits, std::int64_t batch, std::int64_t pitch, int parts, const SplitSums& split,
            Stream& stream, Other... other) {
  using P = Forward<Format, Tile>;
  launch_product(forward_kernel<Format, Tile, Other...>, P::grid(batch, weights.rows, parts), Tile::kThreads,
                 P::shared_bytes(weights.columns), stream,
                 Operand<typename Format::Value>{inputs.data, inputs.pitch, batch}, state,
                 Operand<typename Format::Value>{weights.data, weights.pitch, weights.rows}, weights.columns,
                 bias, hidden, logits, pitch, split, other...);
}

/// The activation is that of `hidden`; logits have none.
template <class Format>
void forward(Matrix<const typename Format::Value> inputs, const StepState* state,
             Matrix<const typename Format::Value> weights, const float* bias, Activation activation,
             typename Format::Value* hidden, typename Format::Value* sums, float* logits, std::int64_t batch,
             std::int64_t out, std::int64_t pitch, const SplitSums& split, Stream& stream) {
  require_equal("forward: inputs of the layer against columns of the weights", inputs.columns,
                weights.columns);
  require_equal("forward: outputs of the layer against rows of the weights", out, weights.rows);
  require_shape(state != nullptr ? batch > 0 && inputs.rows >= batch : inputs.rows == batch,
                "forward: rows of the inputs", inputs.rows, batch);
  const auto with_tile = [&](auto tile, int parts) {
    using Tile = decltype(tile);
    with_activation<Tile>(activation, [&](auto... other) {
      launch<Format, Tile>(inputs, state, weights, bias, hidden, logits, batch, pitch, parts, split, stream,
                           OtherActivation<Format, decltype(other)>{other, sums}...);
    });
  };
  with_product_tile<Format, Forward, typename Tiles<Format>::LargeForward>(batch, out, weights.columns,
                                                                           with_tile);
}

}  // namespace

std::int64_t split_sum_tiles() { return 2 * multiprocessors(); }
std::int64_t split_sum_values() {
  // Only products that leave multiprocessors idle are split: at most so many blocks, of the largest tile.
  return split_sum_tiles() * 128 * 128;
}

template <class Format>
void forward_hidden(Matrix<const typename Format::Value> inputs, const StepState* state,
                    Matrix<const typename Format::Value> weights, const float* bias, Activation activation,
                    Matrix<typename Format::Value> hidden, typename Format::Value* sums,
                    const SplitSums& split, Stream& stream) {
  forward<Format>(inputs, state, weights, bias, activation, hidden.data, sums, nullptr, hidden.rows,
                  hidden.columns, hidden.pitch, split, stream);
}

template <class Format>
void forward_logits(Matrix<const typename Format::Value> inputs, const StepState* state,
                    Matrix<const typename Format::Value> weights, const float* bias, Matrix<float> logits,
                    const SplitSums& split, Stream& stream) {
  forward<Format>(inputs, state, weights, bias, Activation::kRelu, nullptr, nullptr, logits.data, logits.rows,
                  logits.columns, logits.pitch, split, stream);
}

#define HEADROOM_INSTANTIATE(Format)                                                                      \
  template void forward_hidden<Format>(Matrix<const Format::Value>, const StepState*,                     \
                                       Matrix<const Format::Value>, const float*, Activation,             \
                                       Matrix<Format::Value>, Format::Value*, const SplitSums&, Stream&); \
  template void forward_logits<Format>(Matrix<const Format::Value>, const StepState*,                     \
                                       Matrix<const Format::Value>, const float*, Matrix<float>,          \
                                       const SplitSums&, Stream&);
HEADROOM_INSTANTIATE(Fp32)
HEADROOM_INSTANTIATE(Tf32)
HEADROOM_INSTANTIATE(Fp16)
HEADROOM_INSTANTIATE(Bf16)
#undef HEADROOM_INSTANTIATE

}  // namespace headroom::layered
