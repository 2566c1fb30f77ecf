// The kernels of cuda-resident in bf16.
#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "resident/patch_step.cuh"
#include "resident/slice_exchange.cuh"
#include "resident/slice_formats.cuh"
#include "resident/slice_rows.cuh"
#include "resident/slice_step.cuh"
#include "resident/slice_turned.cuh"
#include "resident/slice_whole.cuh"
#include "resident/slice_whole_pair.cuh"

namespace headroom::resident {
namespace {

const emulated::KernelInstance kInstances[] = {
    KERNEL_INSTANCE(patch_steps<Bf16Type>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceBf16, SliceCluster, 1, 0, 1, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceBf16, SliceGrid, 1, 0, 1, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceBf16, SliceGrid, 2, 0, 1, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceBf16, SliceGrid, 4, 0, 1, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceBf16, SliceGrid, 4, 0, 2, 2>>),
    KERNEL_INSTANCE(slice_steps<SliceWholeMember<SliceBf16>>),
    KERNEL_INSTANCE(slice_steps<SliceWholePair<SliceBf16, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceWholePair<SliceBf16, 4>>),
    KERNEL_INSTANCE(slice_steps<SliceRowsMember<SliceBf16>>),
    KERNEL_INSTANCE(slice_steps<SliceTurnedMember<SliceFiniteBf16>>),
};

}  // namespace
}  // namespace headroom::resident

std::span<const headroom::emulated::KernelInstance> headroom::emulated::bf16_instances() {
  return resident::kInstances;
}
