// Gradients of a layer's weights and biases: dW = d^T * x and db = column sums of d, over the batch.
//
// A block owns 32 x 64, 128 x 64 or 128 x 128 elements of dW (rows are outputs, columns are inputs) and walks along
// the samples of its part of the batch; the blocks of the first column also add up db from the slabs of d
// that they stage anyway.
//   in:    d [batch, out] and x [batch, in], both with the outer index contiguous
//   out:   dW [out, in] fp32, db [out] fp32
//   bytes: 4 a weight written; d and x once a row (column) of blocks, from L2.
//          At batch 32 writing is everything.
// A narrow network with a large batch has fewer tiles than the GPU has multiprocessors: then the batch is
// cut into parts, each with sums of its own, and sum_splits() adds them in order. Atomic adds would save
// that pass and give other bits every time.
#include <algorithm>
#include <limits>

#include "layered/kernels.h"
#include "layered/product.cuh"

namespace headroom::layered {
namespace {

template <class Format, class Tile>
using Outer = Product<Format, Tile, Storage::kOuterContiguous, Storage::kOuterContiguous>;

template <class Format, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    weight_gradient_kernel(Operand<typename Format::Value> gradient /* [batch, out] */,
                           Operand<typename Format::Value> inputs /* [batch, in], or [batches * batch, in] */,
                           const StepState* state, std::int64_t batch, std::int64_t split_batch,
                           float* weight_gradient /* [out, in] */, std::int64_t pitch,
                           float* bias_gradient /* [out] */, std::int64_t split_stride) {
  using P = Outer<Format, Tile>;
  const std::int64_t out = gradient.outer, in = inputs.outer;
  if (state != nullptr) inputs.data += state->batch * batch * inputs.pitch;
  weight_gradient += blockIdx.z * split_stride;
  bias_gradient += blockIdx.z * split_stride;
  const std::int64_t begin = blockIdx.z * split_batch;
  const std::int64_t end = begin + split_batch < batch ? begin + split_batch : batch;
  const std::int64_t first_output = std::int64_t{blockIdx.y} * Tile::kRows;
  const std::int64_t first_input = std::int64_t{blockIdx.x} * Tile::kColumns;

  // Thread i < kRows keeps the bias gradient of output first_output + i.
  const bool sums_bias = blockIdx.x == 0 && threadIdx.x < Tile::kRows;
  float bias_sum = 0;
  P::run(
      gradient, inputs, first_output, first_input, begin, end,
      [&](const typename Format::Value* slab) {
        if (!sums_bias) return;
        for (int sample = 0; sample < P::kInner; ++sample)  // samples past the end are zero
          bias_sum += to_float(slab[P::TileA::at(static_cast<int>(threadIdx.x), sample)]);
      },
      FetchNothing{},
      [&](int tile_row, int tile_column, float4 sum, Nothing) {
        const std::int64_t row = first_output + tile_row, column = first_input + tile_column;
        // Past the L2, where it would push out weights: the update reads it once, later.
        if (row < out && column < in)
          __stcs(reinterpret_cast<float4*>(weight_gradient + row * pitch + column), sum);
      });
  if (sums_bias && first_output + threadIdx.x < out) bias_gradient[first_output + threadIdx.x] = bias_sum;
}

template <class Format, class Tile>
void launch(Matrix<const typename Format::Value> gradient, Matrix<const typename Format::Value> inputs,
            const StepState* state, Matrix<float> weight_gradient, float* bias_gradient, int splits,
            std::int64_t split_stride, Stream& stream) {
  const std::int64_t batch = gradient.rows;
  const std::int64_t split_batch = tiles(batch, splits);
  const dim3 grid(static_cast<unsigned>(tiles(inputs.columns, Tile::kColumns)),
                  static_cast<unsigned>(tiles(gradient.columns, Tile::kRows)), static_cast<unsigned>(splits));
  launch_product(weight_gradient_kernel<Format, Tile>, grid, Tile::kThreads,
                 Outer<Format, Tile>::shared_bytes(split_batch), stream,
                 Operand<typename Format::Value>{gradient.data, gradient.pitch, gradient.columns},
                 Operand<typename Format::Value>{inputs.data, inputs.pitch, inputs.columns}, state, batch,
                 split_batch, weight_gradient.data, weight_gradient.pitch, bias_gradient, split_stride);
}

/// How a layer's product is divided.
struct Division {
  enum class Tile { kNarrow, kLarge, kTall } tile;
  int splits;  ///< parts of the batch
};

/// As many parts as are not empty once the batch is divided evenly.
int none_empty(std::int64_t batch, std::int64_t splits) {
  return static_cast<int>(tiles(batch, static_cast<int>(tiles(batch, static_cast<int>(splits)))));
}

/// The division of a large batch in fp32 that takes least time: of the multiprocessor with most blocks, in multiply-adds, and
/// of adding up the parts.
Division fastest_division(std::int64_t batch, std::int64_t out, std::int64_t in) {
  constexpr double kStart = 64;  // start and end of a block, in samples
  constexpr double kPartOfWeight =
      0.45;  // a part of a weight, written and read, as a share of the GPU's multiply-adds
  constexpr double kNarrowCost = 1.7;  // as TurnedTile::kCost
  constexpr std::int64_t kLeastPart = 256;
  const std::int64_t processors = multiprocessors();
  Division fastest{};
  double least = std::numeric_limits<double>::infinity();
  const auto try_tile = [&](Division::Tile tile, int rows, int columns, double cost, const auto& turns_of) {
    const std::int64_t blocks = tiles(out, rows) * tiles(in, columns);
    const std::int64_t most = std::clamp<std::int64_t>(8 * processors / blocks, 1, tiles(batch, kLeastPart));
    for (std::int64_t wanted = 1; wanted <= most; ++wanted) {
      const int splits = none_empty(batch, wanted);
      const double walked = cost * rows * columns * turns_of(blocks * splits) *
                            (static_cast<double>(tiles(batch, splits)) + kStart);
      const double added = splits > 1 ? kPartOfWeight * static_cast<double>(splits * out * in) : 0;
      if (walked + added < least) least = walked + added, fastest = {tile, splits};
    }
  };
  const auto try_turned = [&]<class Tile>(Division::Tile name, Tile) {
    try_tile(name, Tile::kRows, Tile::kColumns, Tile::kCost, turns<Tile>);
  };
  using Some = Tiles<Fp32>;
  try_turned(Division::Tile::kLarge, Some::Large{});
  try_turned(Division::Tile::kTall, Some::Tall{});
  try_tile(
      Division::Tile::kNarrow, Some::Narrow::kRows, Some::Narrow::kColumns, kNarrowCost,
      [&](std::int64_t blocks) { return static_cast<double>(tiles(blocks, static_cast<int>(processors))); });
  return fastest;
}

Division divide(Precision precision, std::int64_t batch, std::int64_t out, std::int64_t in) {
  if (precision == Precision::kFp32 && batch >= 1024) return fastest_division(batch, out, in);
  // The large tile from 512 x 512 on, or where the batch can be split to make more of them.
  const std::int64_t large = tiles(out, 128) * tiles(in, 128);
  const bool use_large = large >= 16 || (batch >= 4096 && out >= 128 && in >= 128);
  const Division::Tile tile = use_large ? Division::Tile::kLarge : Division::Tile::kNarrow;
  const std::int64_t blocks = use_large ? large : tiles(out, 32) * tiles(in, 64);
  if (blocks >= multiprocessors()) return {tile, 1};
  const std::int64_t wanted = tiles(2 * multiprocessors(), static_cast<int>(blocks));
  // A part of fewer samples is mostly start and end; half as many hold as many bytes in fp32 and tf32.
  const std::int64_t least = precision == Precision::kFp32 || precision == Precision::kTf32 ? 256 : 512;
  return {tile, none_empty(batch, std::max<std::int64_t>(1, std::min(wanted, batch / least)))};
}

/// Adds up the parts of one quad in their order.
__global__ void sum_splits_kernel(const float* parts, int splits, std::int64_t split_stride, float* sum,
                                  std::int64_t count) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4;
  if (first >= count) return;
  float4 total = *reinterpret_cast<const float4*>(parts + first);
  for (int split = 1; split < splits; ++split) {
    const float4 part = *reinterpret_cast<const float4*>(parts + split * split_stride + first);
    total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
  }
  *reinterpret_cast<float4*>(sum + first) = total;
}

}  // namespace

int weight_gradient_splits(Precision precision, std::int64_t batch, std::int64_t out, std::int64_t in) {
  return divide(precision, batch, out, in).splits;
}

template <class Format>
void weight_gradient(Matrix<const typename Format::Value> gradient,
                     Matrix<const typename Format::Value> inputs, const StepState* state,
                     Matrix<float> weight_gradient, float* bias_gradient, int splits,
                     std::int64_t split_stride, Stream& stream) {
  require_equal("weight gradient: rows of the result against columns of the gradient", weight_gradient.rows,
                gradient.columns);
  require_equal("weight gradient: columns of the result against those of the inputs", weight_gradient.columns,
                inputs.columns);
  require_shape(state != nullptr ? inputs.rows >= gradient.rows : inputs.rows == gradient.rows,
                "weight gradient: rows of the inputs", inputs.rows, gradient.rows);
  require_shape(splits >= 1 && splits <= 65535, "weight gradient: splits of the batch, 65535 at most", splits,
                1);
  const auto with_tile = [&](auto tile) {
    launch<Format, decltype(tile)>(gradient, inputs, state, weight_gradient, bias_gradient, splits,
                                   split_stride, stream);
  };
  using Some = Tiles<Format>;
  switch (divide(Format::kPrecision, gradient.rows, gradient.columns, inputs.columns).tile) {
    case Division::Tile::kLarge:
      return with_tile(typename Some::Large{});
    case Division::Tile::kTall:
      if constexpr (!Format::kTensorCores) return with_tile(typename Some::Tall{});
      break;
    case Division::Tile::kNarrow:
      return with_tile(typename Some::Narrow{});
  }
}

void sum_splits(const float* parts, int splits, std::int64_t split_stride, float* sum, std::int64_t count,
                Stream& stream) {
  require_shape(count % 4 == 0, "sum of splits: values, a multiple of 4", count, tiles(count, 4) * 4);
  require_shape(split_stride % 4 == 0, "sum of splits: stride, a multiple of 4", split_stride,
                tiles(split_stride, 4) * 4);
  sum_splits_kernel<<<static_cast<unsigned>(tiles(count, 4 * 256)), 256, 0, stream.get()>>>(
      parts, splits, split_stride, sum, count);
  CUDA_CHECK(cudaGetLastError());
}

#define HEADROOM_INSTANTIATE(Format)                                                                \
  template void weight_gradient<Format>(Matrix<const Format::Value>, Matrix<const Format::Value>,   \
                                        const StepState*, Matrix<float>, float*, int, std::int64_t, \
                                        Stream&);
HEADROOM_INSTANTIATE(Fp32)
HEADROOM_INSTANTIATE(Tf32)
HEADROOM_INSTANTIATE(Fp16)
HEADROOM_INSTANTIATE(Bf16)
#undef HEADROOM_INSTANTIATE

}  // namespace headroom::layered
