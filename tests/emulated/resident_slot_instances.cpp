// The slice kernel where the optimizer has slots, for the networks of the tests.
#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "resident/slice_exchange.cuh"
#include "resident/slice_formats.cuh"
#include "resident/slice_slots.cuh"

namespace headroom::resident {
namespace {

const emulated::KernelInstance kInstances[] = {
    KERNEL_INSTANCE(slice_slots_steps<SliceSlotsMember<SliceFp32, SliceGrid, 1, 0, 4, 2>>),
    KERNEL_INSTANCE(slice_slots_steps<SliceSlotsMember<SliceFp32, SliceGrid, 1, 0, 4, 1>>),
    KERNEL_INSTANCE(slice_slots_steps<SliceSlotsMember<SliceFp32, SliceGrid, 2, 0, 2, 2>>),
    KERNEL_INSTANCE(slice_slots_steps<SliceSlotsMember<SliceTf32, SliceGrid, 1, 4, 4, 2>>),
    KERNEL_INSTANCE(slice_slots_steps<SliceSlotsMember<SliceFp16, SliceGrid, 1, 4, 2, 2>>),
    KERNEL_INSTANCE(slice_slots_steps<SliceSlotsMember<SliceBf16, SliceGrid, 1, 4, 2, 2>>),
    KERNEL_INSTANCE(slice_slots_steps<SliceSlotsMember<SliceBf16, SliceGrid, 2, 4, 2, 2>>),
};

}  // namespace
}  // namespace headroom::resident

std::span<const headroom::emulated::KernelInstance> headroom::emulated::slot_instances() {
  return resident::kInstances;
}
