// How the kernel that takes tiles is launched, from the maps of shared memory in each form's own file; the weight gradients' kernel.
#include <stdexcept>
#include <string>

#include "device/check.h"
#include "fused/apart.cuh"
#include "fused/cluster.cuh"
#include "fused/gradient.cuh"
#include "fused/pair.cuh"
#include "fused/pipeline.cuh"
#include "fused/warps.cuh"
#include "machine/formats.cuh"
#include "machine/launch_config.h"
#include "machine/panels.h"

namespace headroom::fused {
namespace {

/// Map<hidden>::kSharedBytes, for the depths that the map is made for.
template <template <int> class Map, int kHidden, int kMost>
int shared_bytes_of(int hidden) {
  if (hidden == kHidden) return Map<kHidden>::kSharedBytes;
  if constexpr (kHidden < kMost) return shared_bytes_of<Map, kHidden + 1, kMost>(hidden);
  throw std::logic_error("cuda-fused: no kernel of " + std::to_string(hidden) + " hidden layers");
}

}  // namespace

BlockShape block_shape(const Plan& plan, int shared_limit) {
  switch (plan.form) {
    case Form::kGeneral:
      return {kChainThreads, chain_layout(plan, shared_limit).shared_bytes, 1};
    case Form::kWarps:
      return {kWarpThreads, shared_bytes_of<WarpMap, 1, kMaxOwners>(plan.hidden), 1};
    case Form::kPipeline:
      return {plan.hidden * kWarpgroup, shared_bytes_of<PipelineMap, 1, kMaxOwners>(plan.hidden), 1};
    case Form::kApart:
      return {kApartThreads, shared_bytes_of<ApartMap, 1, kMaxOwners>(plan.hidden), 1};
    case Form::kCluster:
      return {kClusterThreads, shared_bytes_of<ClusterMap, 2, kMaxOwners>(plan.hidden), plan.hidden};
    case Form::kPair:
      return {kPairThreads, PairMap::kSharedBytes, 2};
  }
  throw std::logic_error("cuda-fused: not a Form");
}

ChainLayout chain_layout(const Plan& plan, int shared_limit) {
  ChainLayout layout{};
  const int panels = kChainWarpgroups * plan.width_panels;
  const int mask_words = plan.width > 64 ? 2 : 1;
  const int stage = kChainWarpgroups * kTilePanelBytes + hidden_panel_bytes(plan.width);
  layout.resident_bytes = plan.image_bytes - plan.hidden_begin;
  layout.staging_begin = (layout.resident_bytes + 1023) / 1024 * 1024;
  layout.narrow_staging_begin = layout.staging_begin + panels * kTilePanelBytes;
  layout.ring_begin =
      layout.narrow_staging_begin + (sums_outputs(plan) ? kChainWarpgroups * kNarrowTileBytes : 0);
  const int masks = kChainWarpgroups * plan.hidden * mask_words * kWarpgroup * 4;
  constexpr int kMostStages = 6, kBarrierBytes = 8 * (2 + 2 * kMostStages) + 4 * 4 * kChainWarpgroups;
  layout.stages = (shared_limit - layout.ring_begin - masks - kBarrierBytes) / stage;
  if (layout.stages > kMostStages) layout.stages = kMostStages;
  layout.mask_begin = layout.ring_begin + layout.stages * stage;
  layout.barrier_begin = layout.mask_begin + masks;
  layout.shared_bytes = layout.barrier_begin + kBarrierBytes;
  return layout;
}

void launch_gradients(Precision precision, const GradientBlock* blocks, int count, std::int64_t batch_bytes,
                      const StepState* state, float* partials, cudaStream_t stream) {
  const auto kernel = precision == Precision::kBf16 ? gradient_kernel<Bf16> : gradient_kernel<Fp16>;
  allow_shared_bytes(kernel, kGradientShared);
  const LaunchConfig launch(count, kChainThreads, kGradientShared, stream, kGradientPair);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, blocks, batch_bytes, state, partials));
}

}  // namespace headroom::fused
