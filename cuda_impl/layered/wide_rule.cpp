// When the wide products are taken: by their shape. Where it was measured they were faster; see the notes.
#include <algorithm>

#include "device/check.h"
#include "layered/shapes.h"
#include "layered/wide.h"

namespace headroom::layered {
namespace {

constexpr std::int64_t kLeastColumns = kWideColumns / 2, kLeastInner = 2 * kWideInner, kLeastPart = 512;

bool half_of_the_gpu(std::int64_t tile_count) { return 2 * tile_count >= multiprocessors(); }

std::int64_t wide_tiles(std::int64_t rows, std::int64_t columns) {
  return tiles(rows, kWideRows) * tiles(columns, kWideColumns);
}

}  // namespace

bool wide_products_run() {
  int device = 0, major = 0, minor = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major == 9 && minor == 0;
}

bool wide_product_pays(std::int64_t batch, std::int64_t columns, std::int64_t inner) {
  return columns >= kLeastColumns && inner >= kLeastInner && half_of_the_gpu(wide_tiles(batch, columns));
}

int wide_gradient_parts(std::int64_t batch, std::int64_t out, std::int64_t in) {
  // Clusters of tiles one below the other run together; as many parts as give each its place.
  const std::int64_t units = wide_units(wide_walk(out, in, 1, 1, gradient_columns(in)));
  const std::int64_t parts = std::clamp<std::int64_t>(multiprocessors() / kWideCluster / units, 1,
                                                      std::max<std::int64_t>(1, batch / kLeastPart));
  return wide_walk(out, in, batch, static_cast<int>(parts)).parts;
}

bool wide_gradient_pays(std::int64_t batch, std::int64_t out, std::int64_t in) {
  return out >= kWideRows && in >= kLeastColumns && batch >= kLeastPart &&
         half_of_the_gpu(wide_tiles(out, in) * wide_gradient_parts(batch, out, in));
}

}  // namespace headroom::layered
