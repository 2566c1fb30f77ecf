// How the kernels of cuda-fused are launched, from the maps of shared memory in their own files.
#include <stdexcept>
#include <type_traits>

#include "fused/apart.cuh"
#include "fused/cluster.cuh"
#include "fused/compiled/compiled.h"
#include "fused/kernels.h"
#include "fused/pair.cuh"
#include "fused/pipeline.cuh"
#include "fused/warps.cuh"

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

jit::LaunchShape launch_shape(const Plan& plan, int workers, int shared_limit) {
  jit::LaunchShape shape{.blocks = workers, .overlaps_before = true};
  switch (plan.form) {
    case Form::kGeneral:
      shape.threads = kChainThreads;
      shape.shared_bytes = chain_layout(plan, shared_limit).shared_bytes;
      break;
    case Form::kWarps:
      shape.threads = kWarpThreads;
      shape.shared_bytes = shared_bytes_of<WarpMap, 1, kMaxOwners>(plan.hidden);
      break;
    case Form::kPipeline:
      shape.threads = plan.hidden * kWarpgroup;
      shape.shared_bytes = shared_bytes_of<PipelineMap, 1, kMaxOwners>(plan.hidden);
      break;
    case Form::kApart:
      shape.threads = kApartThreads;
      shape.shared_bytes = shared_bytes_of<ApartMap, 1, kMaxOwners>(plan.hidden);
      break;
    case Form::kCluster:
      shape.cluster = plan.hidden;
      shape.threads = kClusterThreads;
      shape.shared_bytes = shared_bytes_of<ClusterMap, 2, kMaxOwners>(plan.hidden);
      break;
    case Form::kPair:
      shape.cluster = 2;
      shape.threads = kPairThreads;
      shape.shared_bytes = PairMap::kSharedBytes;
      break;
  }
  shape.blocks *= shape.cluster;
  return shape;
}

}  // namespace headroom::fused
