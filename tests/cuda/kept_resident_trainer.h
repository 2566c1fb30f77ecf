// cuda-resident with a folder for its kernels (kept_kernels.h), for timing one way beside another. Not set: whatever it chooses.
//   HEADROOM_RESIDENT_KERNEL   blocks, slices, patches or columns
//   HEADROOM_RESIDENT_PLAN     argument or constants, of slices
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "kept_kernels.h"
#include "resident/compiled.h"

namespace headroom {

/// The value that a variable names, or `otherwise` if it is not set.
template <class Value>
Value asked_for(const char* variable, Value otherwise,
                std::initializer_list<std::pair<const char*, Value>> known) {
  const char* asked = std::getenv(variable);
  if (asked == nullptr) return otherwise;
  std::string names;
  for (const auto& [name, value] : known) {
    if (std::string(asked) == name) return value;
    names += std::string(names.empty() ? "" : ", ") + name;
  }
  throw std::invalid_argument(std::string(variable) + ": expected one of " + names + ", found '" + asked +
                              "'");
}

inline std::unique_ptr<Trainer> make_kept_resident_trainer(const Workload& workload, Precision precision,
                                                           const DatasetView& data, const Parameters& initial,
                                                           int device) {
  using Kernel = ResidentOptions::Kernel;
  using resident::PlanForm;
  ResidentOptions options;
  options.kernel = asked_for("HEADROOM_RESIDENT_KERNEL", Kernel::kAny,
                             {{"blocks", Kernel::kBlocks},
                              {"slices", Kernel::kSlices},
                              {"patches", Kernel::kPatches},
                              {"columns", Kernel::kColumns}});
  options.plan_form = asked_for("HEADROOM_RESIDENT_PLAN", PlanForm::kChosen,
                                {{"argument", PlanForm::kArgument}, {"constants", PlanForm::kConstants}});
  auto trainer =
      make_resident_trainer(workload, precision, data, initial, device, folder_of_kept_kernels(), options);
  std::fprintf(stderr, "%s: %s\n", workload.name.c_str(), trainer->note().c_str());
  return trainer;
}

}  // namespace headroom
