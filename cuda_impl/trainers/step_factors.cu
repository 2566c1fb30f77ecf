#include "device/check.h"
#include "trainers/step_factors.h"

namespace headroom {
namespace {

constexpr unsigned kFactorThreads = 256;

__global__ void __launch_bounds__(kFactorThreads)
    step_factors_kernel(Optimizer optimizer, std::int64_t first_step, std::int64_t steps,
                        rules::UpdateFactors* factors) {
  const std::int64_t step = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (step < steps) factors[step] = rules::update_factors(optimizer, first_step + step);
}

}  // namespace

void set_step_factors(const Optimizer& optimizer, std::int64_t first_step, std::int64_t steps,
                      rules::UpdateFactors* factors, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((steps + kFactorThreads - 1) / kFactorThreads);
  step_factors_kernel<<<blocks, kFactorThreads, 0, stream>>>(optimizer, first_step, steps, factors);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace headroom
