// The kernels of cuda-tiled that know nothing of the network: what brings data into the order in which the step reads them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/workload.h"
#include "tiled/plan.h"

namespace headroom::tiled {

/// A layer's weights, [out, in], and how they are kept: by place_of_weight() (plan.h), or in rows.
struct WeightPlaces {
  std::int32_t out, in;
  Tiling tiling;
  std::int64_t pitch;  ///< of rows
  constexpr std::int32_t in_tiles() const { return divide_up(in, tiling.columns); }
  constexpr std::int64_t size() const {
    if (tiling.portable) return out * pitch;
    return std::int64_t{divide_up(out, tiling.rows())} * in_tiles() * tiling.rows() * tiling.columns;
  }
  TILED_BOTH std::int64_t place(int row, int column) const {
    if (tiling.portable) return row * pitch + column;
    return place_of_weight(tiling.rows(), tiling.columns, divide_up(in, tiling.columns), row, column);
  }
};

// All are asynchronous on `stream` and check their launch.

/// placed [places.size()] = weights [out, in] at their places; the rest stays as it is. copy [out, pitch] gets them as they enter
/// products; null for slots, and for weights that enter products as they are.
/// turned [in, turned_pitch]: the copy turned, or null.
void place_weights(Precision precision, const float* weights, const WeightPlaces& places, float* placed,
                   void* copy, std::int64_t pitch, void* turned, std::int64_t turned_pitch,
                   cudaStream_t stream);
/// The way back: weights [out, in].
void collect_weights(const float* placed, const WeightPlaces& places, float* weights, cudaStream_t stream);
/// rounded [rows, pitch] = features [rows, columns]; what lies behind the columns of a row is left alone.
void round_features(Precision precision, const float* features, std::int64_t rows, std::int64_t columns,
                    void* rounded, std::int64_t pitch, cudaStream_t stream);
/// In tf32: turned [batches, columns, pitch] = features [batches * batch, columns], each batch turned.
void turn_features(const float* features, std::int64_t batches, std::int64_t batch, std::int64_t columns,
                   float* turned, std::int64_t pitch, cudaStream_t stream);

}  // namespace headroom::tiled
