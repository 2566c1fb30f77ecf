// The column kernel for those networks of the tests that have batches over 32.
#include "column_instance.h"

namespace headroom::emulated {
namespace {

template <class Format>
std::shared_ptr<const resident::PlanKernel> instance_in(const resident::ColumnPlan& plan) {
  return column_instance<
      Format, ColumnShape{1, 16, 1, 3, 1, 0, 0, 0, 0, 2}, ColumnShape{2, 16, 1, 3, 2, 0, 0, 0, 0, 2},
      ColumnShape{3, 16, 4, 15, 3, 0, 0, 0, 0, 2}, ColumnShape{3, 8, 1, 3, 3, 0, 0, 0, 0, 2},
      ColumnShape{5, 8, 1, 2, 5, 0, 0, 0, 0, 2}, ColumnShape{3, 8, 1, 3, 3, 2, 0, 0, 0, 2},
      ColumnShape{3, 8, 1, 3, 3, 2, 0, 1, 1, 2}, ColumnShape{4, 8, 1, 3, 4, 0, 0, 3, 0, 2}>(plan);
}

}  // namespace

std::shared_ptr<const resident::PlanKernel> column_kernel_of_halves(const resident::ColumnPlan& plan,
                                                                    Precision precision) {
  return precision == Precision::kFp16 ? instance_in<resident::SliceFp16>(plan)
                                       : instance_in<resident::SliceBf16>(plan);
}

}  // namespace headroom::emulated
