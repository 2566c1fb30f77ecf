// cuda-resident-compiled with a folder for its kernels (kept_kernels.h). HEADROOM_RESIDENT_KERNEL: slices or columns, for timing one
// beside the other; not set: whichever it chooses.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "kept_kernels.h"
#include "resident/compiled/compiled.h"

namespace headroom {

inline ResidentOptions asked_resident_options() {
  ResidentOptions options;
  const char* asked = std::getenv("HEADROOM_RESIDENT_KERNEL");
  if (asked == nullptr) return options;
  const std::string name = asked;
  if (name != "slices" && name != "columns")
    throw std::invalid_argument("HEADROOM_RESIDENT_KERNEL: expected slices or columns, found '" + name + "'");
  options.kernel = name == "slices" ? ResidentOptions::Kernel::kSlices : ResidentOptions::Kernel::kColumns;
  return options;
}

inline std::unique_ptr<Trainer> make_kept_resident_trainer(const Workload& workload, Precision precision,
                                                           const DatasetView& data, const Parameters& initial,
                                                           int device) {
  auto trainer = make_compiled_resident_trainer(workload, precision, data, initial, device,
                                                folder_of_kept_kernels(), asked_resident_options());
  std::fprintf(stderr, "%s: %s\n", workload.name.c_str(), trainer->note().c_str());
  return trainer;
}

}  // namespace headroom
