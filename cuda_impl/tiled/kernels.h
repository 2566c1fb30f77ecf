// The kernels of cuda-tiled as the host sees them: the step, and what brings data into the order in which it reads them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/workload.h"
#include "rules/optimizer.cuh"
#include "tiled/plan.h"

namespace headroom::tiled {

/// To be launched cooperatively, with Arguments (arguments.h) as its parameter: all thread blocks have to be there at once.
struct Kernel {
  const void* function;
  int threads, shared_bytes;
};
/// The step with these tiles, one of kTilings. `relu`: with that activation and no other. Precision is kFp16 or kBf16; throws
/// std::invalid_argument if there is no such kernel.
Kernel step_kernel(Precision precision, const Tiling& tiling, bool relu);

/// A layer's weights, [out, in], and how they are kept (plan.h, place_of_weight()).
struct WeightPlaces {
  std::int32_t out, in;
  Tiling tiling;
  std::int32_t in_tiles() const { return divide_up(in, tiling.columns); }
  std::int64_t size() const {
    return std::int64_t{divide_up(out, tiling.rows())} * in_tiles() * tiling.rows() * tiling.columns;
  }
};

// All are asynchronous on `stream` and check their launch.

/// placed [places.size()] = weights [out, in] at their places; the rest stays as it is. copy [out, pitch] gets them as they enter
/// products; null for slots.
void place_weights(Precision precision, const float* weights, const WeightPlaces& places, float* placed,
                   void* copy, std::int64_t pitch, cudaStream_t stream);
/// The way back: weights [out, in].
void collect_weights(const float* placed, const WeightPlaces& places, float* weights, cudaStream_t stream);
/// rounded [rows, pitch] = features [rows, columns]; what lies behind the columns of a row is left alone.
void round_features(Precision precision, const float* features, std::int64_t rows, std::int64_t columns,
                    void* rounded, std::int64_t pitch, cudaStream_t stream);
/// factors[i] are those of step first_step + i, for `steps` steps.
void set_factors(const Optimizer& optimizer, std::int64_t first_step, int steps,
                 rules::UpdateFactors* factors, cudaStream_t stream);

}  // namespace headroom::tiled
