// The column kernel for tests: compiled for the network, or, on the GPU that the CPU plays, one of those that column_kernels.cpp of
// tests/emulated has.
#pragma once

#include <memory>

#include "core/error.h"
#include "resident/trainer.h"
#ifndef HEADROOM_EMULATED
#include "kept_resident_trainer.h"
#else
namespace headroom::emulated {
/// Throws UnsupportedError if there is none for such a plan.
std::shared_ptr<const resident::PlanKernel> column_kernel(const resident::ColumnPlan& plan,
                                                          Precision precision);
}  // namespace headroom::emulated
#endif

namespace headroom {

inline std::unique_ptr<Trainer> make_column_trainer(const Workload& workload, Precision precision,
                                                    const DatasetView& data, const Parameters& initial,
                                                    ResidentOptions options) {
  options.kernel = ResidentOptions::Kernel::kColumns;
#ifdef HEADROOM_EMULATED
  struct Maker : resident::KernelMaker {
    std::shared_ptr<const resident::PlanKernel> make(const resident::SlicePlan&, Precision) const override {
      throw UnsupportedError("column kernels only");
    }
    std::shared_ptr<const resident::PlanKernel> make(const resident::ColumnPlan& plan,
                                                     Precision its_precision) const override {
      return emulated::column_kernel(plan, its_precision);
    }
  };
  const Maker maker;
  return make_resident_trainer(workload, precision, data, initial, 0, options, &maker);
#else
  return make_compiled_resident_trainer(workload, precision, data, initial, 0, folder_of_kept_kernels(),
                                        options);
#endif
}

}  // namespace headroom
