// The column kernel for the networks of the tests: what is compiled for a network on a GPU is instantiated here.
#include <cstdint>

#include "column_instance.h"
#include "intrinsics.h"
// What CUDA C++ has without asking comes first.
#include "core/error.h"
#include "resident/column_step.cuh"
#include "resident/trainer.h"

namespace headroom::emulated {
std::shared_ptr<const resident::PlanKernel> column_kernel(const resident::ColumnPlan& plan,
                                                          Precision precision) {
  if (plan.shape.halves > 1) return column_kernel_of_halves(plan, precision);
  if (plan.shape.activation != 0 || plan.shape.loss != 0) return column_kernel_of_rules(plan, precision);
  if (precision == Precision::kFp16)
    return column_instance<resident::SliceFp16, ColumnShape{1, 16, 1, 3, 1}, ColumnShape{2, 16, 1, 3, 2},
                           ColumnShape{3, 8, 1, 3, 3}, ColumnShape{4, 8, 1, 3, 4}, ColumnShape{7, 8, 1, 2, 7},
                           ColumnShape{4, 16, 4, 15, 3}, ColumnShape{1, 16, 1, 3, 1, 2},
                           ColumnShape{2, 16, 1, 3, 2, 1}, ColumnShape{3, 8, 1, 3, 3, 2},
                           ColumnShape{4, 8, 1, 3, 4, 2}, ColumnShape{4, 16, 4, 15, 3, 2, 3},
                           ColumnShape{3, 8, 8, 15, 3, 2}>(plan);
  return column_instance<resident::SliceBf16, ColumnShape{1, 16, 1, 3, 1}, ColumnShape{2, 16, 1, 3, 2},
                         ColumnShape{3, 8, 1, 3, 3}, ColumnShape{4, 8, 1, 3, 4}, ColumnShape{7, 8, 1, 2, 7},
                         ColumnShape{4, 16, 4, 15, 4}, ColumnShape{6, 16, 4, 15, 6},
                         ColumnShape{1, 16, 1, 3, 1, 2}, ColumnShape{2, 16, 1, 3, 2, 1},
                         ColumnShape{3, 8, 1, 3, 3, 2}, ColumnShape{4, 8, 1, 3, 4, 2},
                         ColumnShape{4, 16, 4, 15, 4, 2, 3}, ColumnShape{3, 8, 8, 15, 3, 2}>(plan);
}

}  // namespace headroom::emulated
