// The slice kernel for those networks of the tests that several devices train together.
#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "resident/slice_ranks.cuh"

namespace headroom::resident {
namespace {

const emulated::KernelInstance kInstances[] = {
    KERNEL_INSTANCE(slice_rank_steps<SliceRanksMember<SliceFp32, 1, 1, 2>>),
    KERNEL_INSTANCE(slice_rank_steps<SliceRanksMember<SliceFp32, 2, 1, 2>>),
    KERNEL_INSTANCE(slice_rank_steps<SliceRanksMember<SliceFp32, 1, 2, 2>>),
    KERNEL_INSTANCE(slice_rank_steps<SliceRanksMember<SliceFp32, 1, 4, 2>>),
    KERNEL_INSTANCE(slice_rank_steps<SliceRanksMember<SliceFp16, 1, 2, 2>>),
    KERNEL_INSTANCE(slice_rank_steps<SliceRanksMember<SliceBf16, 1, 2, 2>>),
    KERNEL_INSTANCE(slice_rank_steps<SliceRanksMember<SliceBf16, 1, 2, 4>>),
    KERNEL_INSTANCE(slice_rank_steps<SliceRanksMember<SliceBf16, 2, 1, 2>>),
};

}  // namespace
}  // namespace headroom::resident

std::span<const headroom::emulated::KernelInstance> headroom::emulated::slice_ranks_instances() {
  return resident::kInstances;
}
