// Gradient of a layer's inputs: dx = (d * W) times the slope of the activation below, rounded for the layer below.
//
// A block owns 32 x 64, 32 x 128, 128 x 64 or 128 x 128 elements of dx (rows are samples, columns are the layer's inputs) and
// walks down the rows of W; product.cuh says how, and how several blocks share a walk.
//   in:    d [batch, out] with the inner index contiguous, W [out, in] with the outer one; what the slope is taken
//          from [batch, in]: the layer's stored inputs, or the sums that they were made of
//   out:   dx [batch, in]
//   bytes: every weight once from device memory at batch 32 (4 bytes, 2 in fp16 and bf16);
//          d once a block from L2
// The slope belongs to the layer below: applied here, where dx is at hand anyway. ReLU's is a mask: dx stays where
// the stored input is positive.
#include "layered/kernels.h"
#include "layered/product.cuh"
#include "rules/activation.cuh"

namespace headroom::layered {
namespace {

template <class Format, class Tile>
using Backward = Product<Format, Tile, Storage::kInnerContiguous, Storage::kOuterContiguous>;

/// An activation other than ReLU, which the kernel has built in.
template <class Which>
struct OtherActivation {
  Which activation;
  template <class Value>
  __device__ void pass_back(float4& sum, const Value* kept) const {
    sum.x = rules::passed_back(activation.value, to_float(kept[0]), sum.x);
    sum.y = rules::passed_back(activation.value, to_float(kept[1]), sum.y);
    sum.z = rules::passed_back(activation.value, to_float(kept[2]), sum.z);
    sum.w = rules::passed_back(activation.value, to_float(kept[3]), sum.w);
  }
};

/// `other`: none or one.
template <class Format, class Tile, class... Other>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    input_gradient_kernel(Operand<typename Format::Value> gradient /* [batch, out] */,
                          Operand<typename Format::Value> weights /* [out, in] */, std::int64_t out,
                          const typename Format::Value* kept /* [batch, in] */,
                          typename Format::Value* input_gradient /* [batch, in] */, std::int64_t pitch,
                          SplitSums split, Other... other) {
  const std::int64_t batch = gradient.outer, in = weights.outer;
  using P = Backward<Format, Tile>;
  const std::int64_t first_row = P::first_row(), first_column = P::first_column();
  using Value = typename Format::Value;
  struct alignas(4 * sizeof(Value)) Quad {
    Value value[4];
  };
  P::run_split(
      gradient, weights, first_row, first_column, out, split,
      [&](int tile_row, int tile_column) {
        const std::int64_t row = first_row + tile_row, column = first_column + tile_column;
        return row < batch && column < in ? *reinterpret_cast<const Quad*>(kept + row * pitch + column)
                                          : Quad{};
      },
      [&](int tile_row, int tile_column, float4 sum, const Quad& active) {
        const std::int64_t row = first_row + tile_row, column = first_column + tile_column;
        if (row >= batch || column >= in) return;
        if constexpr (sizeof...(other) == 0) {
          if (!(to_float(active.value[0]) > 0)) sum.x = 0;
          if (!(to_float(active.value[1]) > 0)) sum.y = 0;
          if (!(to_float(active.value[2]) > 0)) sum.z = 0;
          if (!(to_float(active.value[3]) > 0)) sum.w = 0;
        }
        (other.pass_back(sum, active.value), ...);
        store_rounded_quad<Format>(input_gradient + row * pitch + column, sum);
      });
}

template <class Format, class Tile, class... Other>
void launch(Matrix<const typename Format::Value> gradient, Matrix<const typename Format::Value> weights,
            Matrix<const typename Format::Value> kept, Matrix<typename Format::Value> input_gradient,
            int parts, const SplitSums& split, Stream& stream, Other... other) {
  using P = Backward<Format, Tile>;
  launch_product(input_gradient_kernel<Format, Tile, Other...>,
                 P::grid(gradient.rows, weights.columns, parts), Tile::kThreads,
                 P::shared_bytes(weights.rows), stream,
                 Operand<typename Format::Value>{gradient.data, gradient.pitch, gradient.rows},
                 Operand<typename Format::Value>{weights.data, weights.pitch, weights.columns}, weights.rows,
                 kept.data, input_gradient.data, input_gradient.pitch, split, other...);
}

}  // namespace

template <class Format>
void input_gradient(Matrix<const typename Format::Value> gradient,
                    Matrix<const typename Format::Value> weights, Activation activation,
                    Matrix<const typename Format::Value> kept, Matrix<typename Format::Value> input_gradient,
                    const SplitSums& split, Stream& stream) {
  require_equal("input gradient: columns of the gradient against rows of the weights", gradient.columns,
                weights.rows);
  require_equal("input gradient: columns of the hidden activations against those of the weights",
                kept.columns, weights.columns);
  require_equal("input gradient: columns of the result against those of the weights", input_gradient.columns,
                weights.columns);
  require_equal("input gradient: rows of the hidden activations against the batch", kept.rows, gradient.rows);
  require_equal("input gradient: rows of the result against the batch", input_gradient.rows, gradient.rows);
  with_product_tile<Format, Backward, typename Tiles<Format>::Large>(
      gradient.rows, weights.columns, weights.rows, [&](auto tile, int parts) {
        using Tile = decltype(tile);
        with_activation<Tile>(activation, [&](auto... other) {
          launch<Format, Tile>(gradient, weights, kept, input_gradient, parts, split, stream,
                               OtherActivation<decltype(other)>{other}...);
        });
      });
}

#define HEADROOM_INSTANTIATE(Format)                                                                         \
  template void input_gradient<Format>(Matrix<const Format::Value>, Matrix<const Format::Value>, Activation, \
                                       Matrix<const Format::Value>, Matrix<Format::Value>, const SplitSums&, \
                                       Stream&);
HEADROOM_INSTANTIATE(Fp32)
HEADROOM_INSTANTIATE(Tf32)
HEADROOM_INSTANTIATE(Fp16)
HEADROOM_INSTANTIATE(Bf16)
#undef HEADROOM_INSTANTIATE

}  // namespace headroom::layered
