// The column kernel for those networks of the tests that have other activations and losses.
#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "resident/column_step.cuh"
#include "resident/slice_formats.cuh"

namespace headroom::resident {
namespace {

const emulated::KernelInstance kInstances[] = {
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{3, 8, 1, 3, 3, 2, 0, 1, 1, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{2, 8, 1, 3, 2, 1, 0, 2, 2, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{4, 8, 1, 3, 4, 0, 0, 3, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{1, 16, 1, 3, 1, 0, 0, 4, 1, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{1, 8, 1, 3, 1, 2, 0, 2, 1, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceFp16, ColumnShape{3, 8, 1, 3, 3, 0, 0, 0, 2, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{3, 8, 1, 3, 3, 2, 0, 1, 1, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{2, 8, 1, 3, 2, 1, 0, 2, 2, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{4, 8, 1, 3, 4, 0, 0, 3, 0, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{1, 16, 1, 3, 1, 0, 0, 4, 1, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{1, 8, 1, 3, 1, 2, 0, 2, 1, 1}>>),
    KERNEL_INSTANCE(column_steps<ColumnStep<SliceBf16, ColumnShape{3, 8, 1, 3, 3, 0, 0, 0, 2, 1}>>),
};

}  // namespace
}  // namespace headroom::resident

std::span<const headroom::emulated::KernelInstance> headroom::emulated::column_rules_instances() {
  return resident::kInstances;
}
