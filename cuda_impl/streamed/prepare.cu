// Inputs and weights between the orders in which the host has them and the tiles that the kernel reads.
#include <stdexcept>

#include "device/check.h"
#include "machine/memory.cuh"
#include "streamed/arguments.h"
#include "streamed/fp32_format.cuh"
#include "streamed/packed_tf32_format.cuh"
#include "streamed/sixteen_bit_formats.cuh"
#include "streamed/tf32_format.cuh"

namespace headroom::streamed {
namespace {

constexpr int kBlock = 256;

unsigned blocks_for(std::int64_t threads) { return static_cast<unsigned>((threads + kBlock - 1) / kBlock); }

/// One warp a tile: its values into shared memory, then its chunks out.
template <class Format>
__global__ void __launch_bounds__(32)
    pack_inputs_kernel(Plan plan, const float* features /* [batches * batch, in] */, unsigned char* inputs) {
  __shared__ float values[kTileSide * kValuesPitch];
  const std::int64_t tile = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x), in = plan.layer[0].in;
  const int row = static_cast<int>(tile % plan.groups) * kGroupRows + lane;
  const int first = static_cast<int>(tile / plan.groups % plan.input_tiles) * kTileSide;
  const std::int64_t batch = tile / plan.groups / plan.input_tiles;
  for (int feature = 0; feature < kTileSide; ++feature)
    values[feature * kValuesPitch + lane] = row < plan.batch && first + feature < in
                                                ? features[(batch * plan.batch + row) * in + first + feature]
                                                : 0.0f;
  __syncwarp();
  for (int chunk = lane; chunk < Format::kActivationBytes / 16; chunk += 32)
    store_global16(inputs + tile * Format::kActivationBytes + chunk * 16,
                   Format::template chunk<false>(values, chunk));
}

/// One thread a weight.
template <class Format, bool kPack>
__global__ void __launch_bounds__(kBlock) copy_weights_kernel(LayerPlan layer, Masters masters, int first_row,
                                                              int rows, float* flat /* [rows, in] */) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (index >= std::int64_t{rows} * layer.in) return;
  const int output = first_row + static_cast<int>(index / layer.in),
            input = static_cast<int>(index % layer.in);
  const std::int64_t tile =
      (layer.first_tile + std::int64_t{output / kTileSide} * layer.in_tiles + input / kTileSide) *
      Format::kMasterStride;
  unsigned char* const part[2] = {masters.part[0] + tile, masters.part[1] + tile};
  const int slot = Format::slot(output % kTileSide, input % kTileSide);
  if constexpr (kPack)
    Format::store_master(part, slot, flat[index]);
  else
    flat[index] = Format::load_master({part[0], part[1]}, slot);
}

/// Calls `function` with the format of a precision.
template <class Function>
auto with_format(const Layout& layout, const Function& function) {
  switch (layout.precision) {
    case Precision::kFp32:
      return function(Fp32());
    case Precision::kTf32:
      if (layout.packs) return function(PackedTf32());
      return function(Tf32());
    case Precision::kFp16:
      return function(Fp16());
    case Precision::kBf16:
      return function(Bf16());
  }
  throw std::logic_error("cuda-streamed: not a Precision");
}

template <bool kPack>
void copy_weights(const Plan& plan, int index, const Layout& layout, const Masters& masters, int first_row,
                  int rows, float* flat, cudaStream_t stream) {
  const LayerPlan& layer = plan.layer[index];
  with_format(layout, [&](auto format) {
    copy_weights_kernel<decltype(format), kPack>
        <<<blocks_for(std::int64_t{rows} * layer.in), kBlock, 0, stream>>>(layer, masters, first_row, rows,
                                                                           flat);
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

int block_threads(Precision precision) {
  return with_format({precision}, [](auto format) { return decltype(format)::kWarps * 32; });
}
int activation_bytes(const Layout& layout) {
  return with_format(layout, [](auto format) { return decltype(format)::kActivationBytes; });
}
int master_stride(Precision precision) {
  return with_format({precision}, [](auto format) { return decltype(format)::kMasterStride; });
}

void pack_inputs(const Plan& plan, const Layout& layout, const float* features, std::int64_t batches,
                 unsigned char* inputs, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(batches * plan.input_tiles * plan.groups);
  with_format(layout, [&](auto format) {
    pack_inputs_kernel<decltype(format)><<<tiles, 32, 0, stream>>>(plan, features, inputs);
  });
  CUDA_CHECK(cudaGetLastError());
}

void pack_weights(const Plan& plan, int layer, const Layout& layout, const float* rows_of_weight,
                  int first_row, int rows, const Masters& masters, cudaStream_t stream) {
  copy_weights<true>(plan, layer, layout, masters, first_row, rows, const_cast<float*>(rows_of_weight),
                     stream);
}

void unpack_weights(const Plan& plan, int layer, const Layout& layout, const Masters& masters, int first_row,
                    int rows, float* rows_of_weight, cudaStream_t stream) {
  copy_weights<false>(plan, layer, layout, masters, first_row, rows, rows_of_weight, stream);
}

}  // namespace headroom::streamed
