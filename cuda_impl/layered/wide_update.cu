// The update where wide products left sums of parts of the batch: of weights split among blocks, and of every bias.
//
// A thread owns a quad of parameters and adds up its parts in their order. 4 bytes a part and parameter, from the L2.
#include "layered/kernels.h"
#include "layered/shapes.h"
#include "layered/weight_copy.cuh"

namespace headroom::layered {
namespace {

constexpr int kBlock = 256;

template <class Format>
__global__ void __launch_bounds__(kBlock)
    update_from_parts_kernel(float4* masters, const float4* parts, int count_of_parts,
                             std::int64_t part_quads, typename Format::Value* copy, std::int64_t quads,
                             float learning_rate, float inverse_loss_scale) {
  const std::int64_t quad = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (quad >= quads) return;
  float4 weights = masters[quad], change = parts[quad];
#pragma unroll 4
  for (int part = 1; part < count_of_parts; ++part) {
    const float4 more = parts[part * part_quads + quad];
    change.x += more.x, change.y += more.y, change.z += more.z, change.w += more.w;
  }
  weights.x = fmaf(-learning_rate, change.x * inverse_loss_scale, weights.x);
  weights.y = fmaf(-learning_rate, change.y * inverse_loss_scale, weights.y);
  weights.z = fmaf(-learning_rate, change.z * inverse_loss_scale, weights.z);
  weights.w = fmaf(-learning_rate, change.w * inverse_loss_scale, weights.w);
  masters[quad] = weights;
  if constexpr (sizeof(typename Format::Value) == 2)
    if (copy != nullptr) store_weights<Format>(copy + 4 * quad, weights);
}

}  // namespace

template <class Format>
void update_from_parts(float* masters, const float* parts, int count_of_parts, std::int64_t part_stride,
                       typename Format::Value* copy, std::int64_t count, float learning_rate,
                       float inverse_loss_scale, Stream& stream) {
  require_shape(count % 4 == 0, "update from parts: parameters, a multiple of 4", count, tiles(count, 4) * 4);
  require_shape(part_stride % 4 == 0, "update from parts: stride, a multiple of 4", part_stride,
                tiles(part_stride, 4) * 4);
  update_from_parts_kernel<Format>
      <<<static_cast<unsigned>(tiles(count / 4, kBlock)), kBlock, 0, stream.get()>>>(
          reinterpret_cast<float4*>(masters), reinterpret_cast<const float4*>(parts), count_of_parts,
          part_stride / 4, copy, count / 4, learning_rate, inverse_loss_scale);
  CUDA_CHECK(cudaGetLastError());
}

#define HEADROOM_INSTANTIATE(Format)                                                               \
  template void update_from_parts<Format>(float*, const float*, int, std::int64_t, Format::Value*, \
                                          std::int64_t, float, float, Stream&);
HEADROOM_INSTANTIATE(Fp16)
HEADROOM_INSTANTIATE(Bf16)
#undef HEADROOM_INSTANTIATE

}  // namespace headroom::layered
