// The kernels of cuda-resident in tf32.
#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "resident/slice_exchange.cuh"
#include "resident/slice_formats.cuh"
#include "resident/slice_packed.cuh"
#include "resident/slice_step.cuh"
#include "resident/slice_whole_rows.cuh"
#include "resident/slice_wide_rows.cuh"

namespace headroom::resident {
namespace {

const emulated::KernelInstance kInstances[] = {
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceTf32, SliceCluster, 1, 0, 1, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceTf32, SliceGrid, 1, 0, 2, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceTf32, SliceGrid, 2, 0, 2, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceTf32, SliceGrid, 2, 4, 2, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceTf32, SliceGrid, 1, 0, 4, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceTf32, SliceGrid, 4, 0, 2, 2>>),
    KERNEL_INSTANCE(slice_steps<SlicePackedMember<SliceTf32>>),
    KERNEL_INSTANCE(slice_steps<SliceWholeRowsMember<SliceTf32>>),
    KERNEL_INSTANCE(slice_steps<SliceWideRowsMember<SliceTf32>>),
};

}  // namespace
}  // namespace headroom::resident

std::span<const headroom::emulated::KernelInstance> headroom::emulated::tf32_instances() {
  return resident::kInstances;
}
