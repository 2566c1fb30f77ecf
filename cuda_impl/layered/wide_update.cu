// The update where sums of parts of the batch were left: of weights split among blocks, and of biases.
//
// A thread owns a quad of parameters and adds up its parts in their order. 4 bytes a part and parameter, from the L2.
#include "layered/kernels.h"
#include "layered/shapes.h"
#include "layered/weight_copy.cuh"
#include "machine/dependent_launch.cuh"
#include "machine/launch_config.h"

namespace headroom::layered {
namespace {

constexpr int kBlock = 256;

template <class Format>
struct Updates {
  PartsUpdate<Format> update[kPartsUpdates];
  unsigned blocks_end[kPartsUpdates];
};

template <class Format>
__global__ void __launch_bounds__(kBlock)
    update_from_parts_kernel(const __grid_constant__ Updates<Format> all, float learning_rate,
                             float inverse_loss_scale) {
  machine::wait_for_kernel_before();
  machine::let_next_kernel_start();
  int which = 0;
  while (blockIdx.x >= all.blocks_end[which]) ++which;
  const PartsUpdate<Format>& of = all.update[which];
  const std::int64_t first_block = which > 0 ? all.blocks_end[which - 1] : 0;
  const std::int64_t quad = (blockIdx.x - first_block) * kBlock + threadIdx.x;
  if (quad >= of.count / 4) return;
  float4* masters = reinterpret_cast<float4*>(of.masters);
  const float4* parts = reinterpret_cast<const float4*>(of.parts);
  const std::int64_t part_quads = of.part_stride / 4;
  const int count_of_parts = static_cast<int>(of.count_of_parts);
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
  if (of.copy != nullptr) store_weights<Format>(of.copy + 4 * quad, weights);
}

}  // namespace

template <class Format>
void update_from_parts(std::initializer_list<PartsUpdate<Format>> updates, float learning_rate,
                       float inverse_loss_scale, Stream& stream) {
  Updates<Format> all{};
  int which = 0;
  unsigned blocks = 0;
  for (const PartsUpdate<Format>& update : updates) {
    require_shape(which < kPartsUpdates, "update from parts: updates, at most", which + 1, kPartsUpdates);
    require_shape(update.count % 4 == 0, "update from parts: parameters, a multiple of 4", update.count,
                  tiles(update.count, 4) * 4);
    require_shape(update.part_stride % 4 == 0, "update from parts: stride, a multiple of 4",
                  update.part_stride, tiles(update.part_stride, 4) * 4);
    blocks += static_cast<unsigned>(tiles(update.count / 4, kBlock));
    all.update[which] = update;
    all.blocks_end[which++] = blocks;
  }
  const machine::LaunchConfig launch(static_cast<int>(blocks), kBlock, 0, stream.get());
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, update_from_parts_kernel<Format>, all, learning_rate,
                                inverse_loss_scale));
}

#define HEADROOM_INSTANTIATE(Format) \
  template void update_from_parts<Format>(std::initializer_list<PartsUpdate<Format>>, float, float, Stream&);
HEADROOM_INSTANTIATE(Fp16)
HEADROOM_INSTANTIATE(Bf16)
#undef HEADROOM_INSTANTIATE

}  // namespace headroom::layered
