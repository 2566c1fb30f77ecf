#include "core/dataset_view.h"

#include "core/error.h"

namespace headroom {

void require_data_for(const Workload& workload, const DatasetView& data, const std::string& trainer) {
  if (data.feature_count != workload.inputs())
    throw InputError(trainer + ": data of " + std::to_string(data.feature_count) + " features for '" +
                     workload.name + "', expected " + std::to_string(workload.inputs()));
  if (data.batches(workload.joined_batch_size()) < 1)
    throw InputError(trainer + ": batch size " + std::to_string(workload.joined_batch_size()) +
                     " is larger than the data set of " + std::to_string(data.samples) + " samples");
  const bool labelled = workload.loss == Loss::kCrossEntropy;
  if ((labelled ? static_cast<const void*>(data.labels) : data.targets) == nullptr)
    throw InputError(trainer + ": loss " + std::string(to_string(workload.loss)) + " of '" + workload.name +
                     "' needs " + (labelled ? "int32 labels" : "fp32 targets") + ", and the data has none");
}

}  // namespace headroom
