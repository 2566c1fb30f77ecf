// cuda-resident-compiled with a folder for its kernels (kept_kernels.h). HEADROOM_RESIDENT_KERNEL: slices or columns, for timing one
// beside the other, or ahead for cuda-resident itself; not set: whichever it chooses.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "kept_kernels.h"
#include "resident/compiled/compiled.h"

namespace headroom {

inline std::unique_ptr<Trainer> make_kept_resident_trainer(const Workload& workload, Precision precision,
                                                           const DatasetView& data, const Parameters& initial,
                                                           int device) {
  const char* variable = std::getenv("HEADROOM_RESIDENT_KERNEL");
  const std::string asked = variable == nullptr ? "" : variable;
  ResidentOptions options;
  if (asked == "slices")
    options.kernel = ResidentOptions::Kernel::kSlices;
  else if (asked == "columns")
    options.kernel = ResidentOptions::Kernel::kColumns;
  else if (!asked.empty() && asked != "ahead")
    throw std::invalid_argument("HEADROOM_RESIDENT_KERNEL: expected slices, columns or ahead, found '" +
                                asked + "'");
  auto trainer = asked == "ahead" ? make_resident_trainer(workload, precision, data, initial, device)
                                  : make_compiled_resident_trainer(workload, precision, data, initial, device,
                                                                   folder_of_kept_kernels(), options);
  std::fprintf(stderr, "%s: %s\n", workload.name.c_str(), trainer->note().c_str());
  return trainer;
}

}  // namespace headroom
