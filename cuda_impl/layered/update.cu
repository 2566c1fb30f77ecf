// The update of all parameters at once: W -= learning_rate * dW, and the 16-bit copy that the products read.
//
// Weights, gradients and copies of all layers lie in three buffers of the same order, so one launch serves
// the network. A thread owns two quads one block apart: four 16-byte loads under way before the first use.
//   bytes: 12 a parameter (read master and gradient, write master), 14 with the copy.
//          No arithmetic to speak of.
// The loss scale of fp16 is a power of two, so dividing it out here in fp32 is exact.
//
// An optimizer with slots has a kernel of its own: slots lie in buffers of the masters' order, 8 more bytes a slot and
// parameter. What all parameters of a step share (bias corrections) a kernel of one thread works out beside the step's
// products, from the step's number on the device, so that a captured step can be any one.
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

__global__ void update_factors_kernel(Optimizer optimizer, const StepState* state,
                                      rules::UpdateFactors* factors) {
  *factors = rules::update_factors(optimizer, state->step);
}

template <class Format, int kSlots>
__global__ void __launch_bounds__(kBlock)
    update_with_slots_kernel(float4* masters, const float4* gradient, typename Format::Value* copy,
                             float4* first_slot, float4* second_slot /* null with one */, std::int64_t quads,
                             const rules::UpdateFactors* factors_of_step, float inverse_loss_scale) {
  const std::int64_t block = gridDim.x - 1 - blockIdx.x;  // as above
  const std::int64_t quad = block * kBlock + threadIdx.x;
  if (quad >= quads) return;
  const rules::UpdateFactors factors = *factors_of_step;
  float4 weights = masters[quad], change = gradient[quad], first = first_slot[quad], second{};
  change.x *= inverse_loss_scale, change.y *= inverse_loss_scale;
  change.z *= inverse_loss_scale, change.w *= inverse_loss_scale;
  if constexpr (kSlots == 1) {
    rules::update_with_momentum(factors, change.x, weights.x, first.x);
    rules::update_with_momentum(factors, change.y, weights.y, first.y);
    rules::update_with_momentum(factors, change.z, weights.z, first.z);
    rules::update_with_momentum(factors, change.w, weights.w, first.w);
  } else {
    second = second_slot[quad];
    rules::update_adam(factors, change.x, weights.x, first.x, second.x);
    rules::update_adam(factors, change.y, weights.y, first.y, second.y);
    rules::update_adam(factors, change.z, weights.z, first.z, second.z);
    rules::update_adam(factors, change.w, weights.w, first.w, second.w);
    second_slot[quad] = second;
  }
  first_slot[quad] = first;
  masters[quad] = weights;
  if constexpr (sizeof(typename Format::Value) == 2) store_weights<Format>(copy + 4 * quad, weights);
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

void set_update_factors(const Optimizer& optimizer, const StepState* state, rules::UpdateFactors* factors,
                        Stream& stream) {
  update_factors_kernel<<<1, 1, 0, stream.get()>>>(optimizer, state, factors);
  CUDA_CHECK(cudaGetLastError());
}

template <class Format>
void update_with_slots(float* masters, const float* gradient, typename Format::Value* copy, float* first_slot,
                       float* second_slot, std::int64_t count, const rules::UpdateFactors* factors,
                       float inverse_loss_scale, Stream& stream) {
  require_shape(count % 4 == 0, "update with slots: parameters, a multiple of 4", count, tiles(count, 4) * 4);
  const std::int64_t quads = count / 4;
  const auto blocks = static_cast<unsigned>(tiles(quads, kBlock));
  const auto quads_of = [](float* values) { return reinterpret_cast<float4*>(values); };
  const auto* change = reinterpret_cast<const float4*>(gradient);
  if (second_slot == nullptr)
    update_with_slots_kernel<Format, 1><<<blocks, kBlock, 0, stream.get()>>>(
        quads_of(masters), change, copy, quads_of(first_slot), nullptr, quads, factors, inverse_loss_scale);
  else
    update_with_slots_kernel<Format, 2>
        <<<blocks, kBlock, 0, stream.get()>>>(quads_of(masters), change, copy, quads_of(first_slot),
                                              quads_of(second_slot), quads, factors, inverse_loss_scale);
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
  template void update_with_slots<Format>(float*, const float*, Format::Value*, float*, float*,            \
                                          std::int64_t, const rules::UpdateFactors*, float, Stream&);      \
  template void round_weights<Format>(const float*, Format::Value*, std::int64_t, Stream&);
HEADROOM_INSTANTIATE(Fp32)
HEADROOM_INSTANTIATE(Tf32)
HEADROOM_INSTANTIATE(Fp16)
HEADROOM_INSTANTIATE(Bf16)
#undef HEADROOM_INSTANTIATE

}  // namespace headroom::layered
