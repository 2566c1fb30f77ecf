// Which kernel a plan gets; the weight gradients' kernel.
#include "device/check.h"
#include "fused/gradient.cuh"
#include "machine/formats.cuh"
#include "machine/launch_config.h"
#include "machine/panels.h"

namespace headroom::fused {

namespace {

template <class Format>
void launch_chain_of(const ChainArguments& arguments, int blocks, cudaStream_t stream) {
  switch (arguments.plan.width) {
    case 32:
      return Chain<Format, 32>::launch(arguments, blocks, stream);
    case 64:
      return Chain<Format, 64>::launch(arguments, blocks, stream);
    default:
      return Chain<Format, 128>::launch(arguments, blocks, stream);
  }
}

}  // namespace

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

void launch_chain(Precision precision, const ChainArguments& arguments, int blocks, cudaStream_t stream) {
  if (precision == Precision::kBf16)
    launch_chain_of<Bf16>(arguments, blocks, stream);
  else
    launch_chain_of<Fp16>(arguments, blocks, stream);
}

void launch_warps(Precision precision, const PipelineArguments& arguments, int blocks, cudaStream_t stream) {
  if (precision == Precision::kBf16)
    Warps<Bf16>::launch(arguments, blocks, stream);
  else
    Warps<Fp16>::launch(arguments, blocks, stream);
}

void launch_apart(Precision precision, const PipelineArguments& arguments, int blocks, cudaStream_t stream) {
  if (precision == Precision::kBf16)
    Apart<Bf16>::launch(arguments, blocks, stream);
  else
    Apart<Fp16>::launch(arguments, blocks, stream);
}

void launch_pipeline(Precision precision, const PipelineArguments& arguments, int blocks,
                     cudaStream_t stream) {
  if (precision == Precision::kBf16)
    Pipeline<Bf16>::launch(arguments, blocks, stream);
  else
    Pipeline<Fp16>::launch(arguments, blocks, stream);
}

int fitting_clusters(Precision precision, const Plan& plan) {
  const bool bf16 = precision == Precision::kBf16;
  if (plan.form == Form::kPair) return bf16 ? Pair<Bf16>::fitting() : Pair<Fp16>::fitting();
  return bf16 ? Cluster<Bf16>::fitting(plan.hidden) : Cluster<Fp16>::fitting(plan.hidden);
}

void launch_cluster(Precision precision, const PipelineArguments& arguments, int clusters,
                    cudaStream_t stream) {
  const auto launch = precision == Precision::kBf16
                          ? (arguments.plan.form == Form::kPair ? Pair<Bf16>::launch : Cluster<Bf16>::launch)
                          : (arguments.plan.form == Form::kPair ? Pair<Fp16>::launch : Cluster<Fp16>::launch);
  launch(arguments, clusters, stream);
}

void launch_gradients(Precision precision, const GradientBlock* blocks, int count, std::int64_t batch_bytes,
                      const StepState* state, float* partials, cudaStream_t stream) {
  const auto kernel = precision == Precision::kBf16 ? gradient_kernel<Bf16> : gradient_kernel<Fp16>;
  allow_shared_bytes(kernel, kGradientShared);
  const LaunchConfig launch(count, kChainThreads, kGradientShared, stream, kGradientPair);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, blocks, batch_bytes, state, partials));
}

}  // namespace headroom::fused
