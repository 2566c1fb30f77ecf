#include "driver/results/results.h"

#include <algorithm>
#include <utility>

namespace headroom {

const Record* Results::find(const std::string& workload, const std::string& backend,
                            Precision precision) const {
  for (const Record& record : records) {
    if (record.workload == workload && record.backend == backend && record.precision == precision)
      return &record;
  }
  return nullptr;
}

const Choice* Results::find_choice(const std::string& workload, const std::string& backend,
                                   Precision precision) const {
  const WorkloadEntry* entry = find_workload(workload);
  if (entry == nullptr) return nullptr;
  const auto of_precision = entry->choices.find(precision);
  if (of_precision == entry->choices.end()) return nullptr;
  const auto found = of_precision->second.find(backend);
  return found == of_precision->second.end() ? nullptr : &found->second;
}

const WorkloadEntry* Results::find_workload(const std::string& name) const {
  const auto found = std::find_if(workloads.begin(), workloads.end(),
                                  [&](const WorkloadEntry& entry) { return entry.workload.name == name; });
  return found == workloads.end() ? nullptr : &*found;
}

WorkloadEntry* Results::find_workload(const std::string& name) {
  return const_cast<WorkloadEntry*>(std::as_const(*this).find_workload(name));
}

std::string device_name(const Results& results) {
  return results.device ? results.device->name : "CPU: " + results.host.cpu.value_or("unknown model");
}

}  // namespace headroom
