// The instances of one format.
#pragma once

#include "intrinsics.h"
// What CUDA C++ has without asking comes first.
#include <stdexcept>

#include "fused/apart.cuh"
#include "fused/chain.cuh"
#include "fused/cluster.cuh"
#include "fused/pair.cuh"
#include "fused/pipeline.cuh"
#include "fused/warps.cuh"
#include "fused_kernels.h"
#include "machine/formats.cuh"

namespace headroom::emulated {

template <class Format, int kHidden>
const void* fused_instance_of_depth(fused::Form form) {
  using namespace fused;
  if (form == Form::kWarps) return reinterpret_cast<const void*>(&warp_kernel<Format, kHidden>);
  if (form == Form::kPipeline) return reinterpret_cast<const void*>(&pipeline_kernel<Format, kHidden>);
  if (form == Form::kApart) return reinterpret_cast<const void*>(&apart_kernel<Format, kHidden>);
  if constexpr (kHidden > 1)
    if (form == Form::kCluster) return reinterpret_cast<const void*>(&cluster_kernel<Format, kHidden>);
  throw std::logic_error("fused_instance: a form without an instance");
}
template <class Format, int kWidth>
const void* fused_chain(int class_rows) {
  return class_rows == 16 ? reinterpret_cast<const void*>(&fused::chain_kernel<Format, kWidth, 16>)
                          : reinterpret_cast<const void*>(&fused::chain_kernel<Format, kWidth, 32>);
}

template <class Format>
const void* fused_instance(const fused::Plan& plan) {
  using fused::Form;
  if (plan.form == Form::kPair) return reinterpret_cast<const void*>(&fused::pair_kernel<Format>);
  if (plan.form == Form::kGeneral)
    return plan.width == 32   ? fused_chain<Format, 32>(plan.class_rows)
           : plan.width == 64 ? fused_chain<Format, 64>(plan.class_rows)
                              : fused_chain<Format, 128>(plan.class_rows);
  switch (plan.hidden) {
    case 1:
      return fused_instance_of_depth<Format, 1>(plan.form);
    case 2:
      return fused_instance_of_depth<Format, 2>(plan.form);
    case 3:
      return fused_instance_of_depth<Format, 3>(plan.form);
    default:
      return fused_instance_of_depth<Format, 4>(plan.form);
  }
}

}  // namespace headroom::emulated
