// The update of all parameters at once: W -= learning_rate * dW, and the 16-bit copy that the products read.
//
// Weights, gradients and copies of all layers lie in three buffers of the same order, so one launch serves
// the network. A thread owns two quads one block apart: four 16-byte loads under way before the first use.
//   bytes: 12 a parameter (read master and gradient, write master), 14 with the copy.
//          No arithmetic to speak of.
// The loss scale of fp16 is a power of two, so dividing it out here in fp32 is exact.
#include "layered/kernels.h"
#include "layered/shapes.h"
#include "layered/weight_copy.cuh"

namespace headroom::layered {
namespace {

constexpr int kBlock = 256;
constexpr int kQuadsPerThread = 2;

template <class Format>
__global__ void __launch_bounds__(kBlock)
    update_kernel(float4* masters, const float4* gradient, typename Format::Value* copy, std::int64_t quads,
                  float learning_rate, float inverse_loss_scale) {
  // From the last layer to the first: what is written last is still in the L2 when the next
  // forward pass begins.
  const std::int64_t block = gridDim.x - 1 - blockIdx.x;
  const std::int64_t first = block * kBlock * kQuadsPerThread + threadIdx.x;
  float4 weights[kQuadsPerThread], change[kQuadsPerThread];
#pragma unroll
  for (int n = 0; n < kQuadsPerThread; ++n) {
    const std::int64_t quad = first + n * kBlock;
    if (quad >= quads) break;
    weights[n] = masters[quad];
    change[n] = gradient[quad];
  }
#pragma unroll
  for (int n = 0; n < kQuadsPerThread; ++n) {
    const std::int64_t quad = first + n * kBlock;
    if (quad >= quads) break;
    weights[n].x = fmaf(-learning_rate, change[n].x * inverse_loss_scale, weights[n].x);
    weights[n].y = fmaf(-learning_rate, change[n].y * inverse_loss_scale, weights[n].y);
    weights[n].z = fmaf(-learning_rate, change[n].z * inverse_loss_scale, weights[n].z);
    weights[n].w = fmaf(-learning_rate, change[n].w * inverse_loss_scale, weights[n].w);
    masters[quad] = weights[n];
    if constexpr (sizeof(typename Format::Value) == 2) store_weights<Format>(copy + 4 * quad, weights[n]);
  }
}

template <class Format>
__global__ void __launch_bounds__(kBlock)
    round_weights_kernel(const float4* masters, typename Format::Value* copy, std::int64_t quads) {
  const std::int64_t quad = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (quad < quads) store_weights<Format>(copy + 4 * quad, masters[quad]);
}

}  // namespace

template <class Format>
void update(float* masters, const float* gradient, typename Format::Value* copy, std::int64_t count,
            float learning_rate, float inverse_loss_scale, Stream& stream) {
  require_shape(count % 4 == 0, "update: parameters, a multiple of 4", count, tiles(count, 4) * 4);
  const std::int64_t quads = count / 4;
  const auto blocks = static_cast<unsigned>(tiles(quads, kBlock * kQuadsPerThread));
  update_kernel<Format><<<blocks, kBlock, 0, stream.get()>>>(reinterpret_cast<float4*>(masters),
                                                             reinterpret_cast<const float4*>(gradient), copy,
                                                             quads, learning_rate, inverse_loss_scale);
  CUDA_CHECK(cudaGetLastError());
}

template <class Format>
void round_weights(const float* masters, typename Format::Value* copy, std::int64_t count, Stream& stream) {
  require_shape(count % 4 == 0, "weight copy: parameters, a multiple of 4", count, tiles(count, 4) * 4);
  round_weights_kernel<Format><<<static_cast<unsigned>(tiles(count / 4, kBlock)), kBlock, 0, stream.get()>>>(
      reinterpret_cast<const float4*>(masters), copy, count / 4);
  CUDA_CHECK(cudaGetLastError());
}

#define HEADROOM_INSTANTIATE(Format)                                                                       \
  template void update<Format>(float*, const float*, Format::Value*, std::int64_t, float, float, Stream&); \
  template void round_weights<Format>(const float*, Format::Value*, std::int64_t, Stream&);
HEADROOM_INSTANTIATE(Fp32)
HEADROOM_INSTANTIATE(Tf32)
HEADROOM_INSTANTIATE(Fp16)
HEADROOM_INSTANTIATE(Bf16)
#undef HEADROOM_INSTANTIATE

}  // namespace headroom::layered
