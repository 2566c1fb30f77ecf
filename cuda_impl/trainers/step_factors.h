// What an optimizer's update shares in each of many steps, on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/workload.h"
#include "rules/optimizer.cuh"

namespace headroom {

/// factors[i] = those of step first_step + i, for `steps` steps. Asynchronous.
void set_step_factors(const Optimizer& optimizer, std::int64_t first_step, std::int64_t steps,
                      rules::UpdateFactors* factors, cudaStream_t stream);

}  // namespace headroom
