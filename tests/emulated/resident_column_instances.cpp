// The column kernel for the networks of the tests.
#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "resident/column_step.cuh"
#include "resident/slice_formats.cuh"

namespace headroom::resident {
namespace {

const emulated::KernelInstance kInstances[] = {
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{1, 16, 1, 3, 1, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{2, 16, 1, 3, 2, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{3, 8, 1, 3, 3, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{4, 8, 1, 3, 4, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{7, 8, 1, 2, 7, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{4, 16, 4, 15, 3, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{1, 16, 1, 3, 1, 2, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{2, 16, 1, 3, 2, 1, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{3, 8, 1, 3, 3, 2, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{4, 8, 1, 3, 4, 2, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{4, 16, 4, 15, 3, 2, 3, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{3, 8, 8, 15, 3, 2, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{1, 16, 1, 3, 1, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{2, 16, 1, 3, 2, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{3, 8, 1, 3, 3, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{4, 8, 1, 3, 4, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{7, 8, 1, 2, 7, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{4, 16, 4, 15, 4, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{6, 16, 4, 15, 6, 0, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{1, 16, 1, 3, 1, 2, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{2, 16, 1, 3, 2, 1, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{3, 8, 1, 3, 3, 2, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{4, 8, 1, 3, 4, 2, 0, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{4, 16, 4, 15, 4, 2, 3, 0, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{3, 8, 8, 15, 3, 2, 0, 0, 0, 1}>>),
};

}  // namespace
}  // namespace headroom::resident

std::span<const headroom::emulated::KernelInstance> headroom::emulated::column_instances() {
  return resident::kInstances;
}
