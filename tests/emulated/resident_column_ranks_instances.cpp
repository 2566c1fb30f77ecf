// The column kernel for those networks of the tests that several devices train together.
#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "resident/column_step.cuh"
#include "resident/slice_formats.cuh"

namespace headroom::resident {
namespace {

const emulated::KernelInstance kInstances[] = {
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{1, 16, 1, 3, 1, 0, 0, 0, 0, 1}, 2>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{2, 16, 1, 3, 2, 0, 0, 0, 0, 1}, 2>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{3, 8, 1, 3, 3, 0, 0, 0, 0, 1}, 2>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{3, 8, 4, 15, 3, 0, 0, 0, 0, 1}, 2>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{4, 8, 1, 3, 4, 0, 0, 3, 1, 1}, 2>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{2, 8, 1, 3, 2, 2, 0, 0, 0, 1}, 4>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{1, 16, 1, 3, 1, 0, 0, 0, 0, 1}, 2>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{2, 16, 1, 3, 2, 0, 0, 0, 0, 1}, 2>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{3, 8, 1, 3, 3, 0, 0, 0, 0, 1}, 2>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{3, 8, 4, 15, 3, 0, 0, 0, 0, 1}, 2>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{4, 8, 1, 3, 4, 0, 0, 3, 1, 1}, 2>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{2, 8, 1, 3, 2, 2, 0, 0, 0, 1}, 4>>),
};

}  // namespace
}  // namespace headroom::resident

std::span<const headroom::emulated::KernelInstance> headroom::emulated::column_ranks_instances() {
  return resident::kInstances;
}
