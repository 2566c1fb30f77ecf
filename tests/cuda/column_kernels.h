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

/// Networks of the tests of the column kernel, in both formats: small ones, those of the size that it is made for, and those that fit
/// in bf16 only.
inline constexpr const char* kSmallColumns[] = {"mlp-33x136x5-b17",
                                                "mlp-33x136x17x5-b17",
                                                "mlp-33x24x17x128x5-b17",
                                                "mlp-33x24x17x120x9x5-b17",
                                                "mlp-20x16x40x9x33x16x24x12x16-b32",
                                                "mlp-231x136x17x9x200x5-b17"};
inline constexpr const char* kColumns[] = {"mlp-784x256x10-b32",
                                           "mlp-784x256x256x10-b32",
                                           "mlp-784x256x256x256x10-b32",
                                           "mlp-784x256x256x256x256x10-b32",
                                           "mlp-784x128x128x128x10-b32",
                                           "mlp-896x256x200x9x16-b31",
                                           "mlp-784x128x128x128x128x128x128x10-b32",
                                           "mlp-16x129x120x256x2-b1"};
inline constexpr const char* kDeepColumns[] = {"mlp-231x136x17x200x9x40x256x16-b32",
                                               "mlp-784x256x256x256x256x256x10-b32",
                                               "mlp-784x256x256x256x256x256x256x10-b32"};
/// The same with an optimizer that has slots, in shared memory and in device memory.
inline constexpr const char* kSmallColumnsWithSlots[] = {
    "mlp-33x136x5-b17-adam", "mlp-33x136x17x5-b17-momentum0.9", "mlp-33x24x17x128x5-b17-adamw",
    "mlp-33x24x17x120x9x5-b17-adam", "mlp-231x136x17x9x200x5-b17-adam"};
inline constexpr const char* kColumnsWithSlots[] = {
    "mlp-784x128x128x128x10-b32-adam",      "mlp-784x256x256x256x10-b32-adam",
    "mlp-896x256x200x9x16-b31-momentum0.9", "mlp-17x64x64x6-b32-adamw",
    "mlp-784x256x256x256x256x10-b32-adamw", "mlp-784x128x128x128x128x128x128x10-b32-adam"};

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
