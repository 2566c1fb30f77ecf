// The kernels of cuda-resident in fp32.
#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "resident/block_step.cuh"
#include "resident/slice_ahead.cuh"
#include "resident/slice_exchange.cuh"
#include "resident/slice_formats.cuh"

namespace headroom::resident {
namespace {

const emulated::KernelInstance kInstances[] = {
    KERNEL_INSTANCE(block_steps),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceFp32, SliceGrid, 1, 0, 4, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceFp32, SliceGrid, 1, 0, 2, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceMember<SliceFp32, SliceGrid, 2, 0, 2, 1>>),
    KERNEL_INSTANCE(slice_steps<SliceAheadMember<SliceFp32, 4, 1, 3>>),
    KERNEL_INSTANCE(slice_steps<SliceAheadMember<SliceFp32, 4, 2, 3>>),
    KERNEL_INSTANCE(slice_steps<SliceAheadMember<SliceFp32, 3, 2, 3>>),
    KERNEL_INSTANCE(slice_steps<SliceAheadMember<SliceFp32, 4, 2, 0>>),
    KERNEL_INSTANCE(slice_steps<SliceAheadMember<SliceFp32, 3, 2, 0>>),
};

}  // namespace
}  // namespace headroom::resident

std::span<const headroom::emulated::KernelInstance> headroom::emulated::fp32_instances() {
  return resident::kInstances;
}
