// Between the flat arrays that the host knows and the orders in which the step reads. All are asynchronous on their stream.
#pragma once

#include <cuda_runtime_api.h>

#include "core/workload.h"
#include "narrow/plan.h"

namespace headroom::narrow {

/// features [batches * batch, inputs] into `inputs` of Arguments.
void pack_inputs(const Plan& plan, const float* features, std::int64_t batches, unsigned char* inputs,
                 cudaStream_t stream);
/// words [batches * batch, `columns`], labels or targets, into `targets` of Arguments.
void pack_targets(const Plan& plan, const std::uint32_t* words, int columns, std::int64_t batches,
                  unsigned char* targets, cudaStream_t stream);
/// flat [parameters] into the order of sums, zeros where there is no parameter; and into the image unless that is null.
void place_parameters(const Plan& plan, const float* flat, float* placed, unsigned char* image,
                      cudaStream_t stream);
/// `places` of Arguments.
void set_places(const Plan& plan, std::int32_t* places, cudaStream_t stream);
void collect_parameters(const Plan& plan, const float* placed, float* flat, cudaStream_t stream);

}  // namespace headroom::narrow
