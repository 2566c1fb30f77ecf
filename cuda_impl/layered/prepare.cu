// The data set brought once into the type and padding that the first product reads; not part of a step.
#include "layered/kernels.h"
#include "layered/product.cuh"

namespace headroom::layered {
namespace {

constexpr int kBlock = 256;

template <class Format>
__global__ void __launch_bounds__(kBlock)
    round_rows_kernel(const float* source /* [rows, columns] */,
                      Matrix<typename Format::Value> rounded /* [rows, columns], padded */) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const std::int64_t row = index / rounded.pitch, column = index % rounded.pitch;
  if (row >= rounded.rows) return;
  rounded.data[index] =
      Format::round(column < rounded.columns ? source[row * rounded.columns + column] : 0.0f);
}

}  // namespace

template <class Format>
void round_rows(const float* source, Matrix<typename Format::Value> rounded, Stream& stream) {
  const std::int64_t blocks = tiles(rounded.rows * rounded.pitch, kBlock);
  require_shape(blocks < (std::int64_t{1} << 31), "round rows: values in one call",
                rounded.rows * rounded.pitch, (std::int64_t{1} << 31) * kBlock);
  if (blocks == 0) return;
  round_rows_kernel<Format><<<static_cast<unsigned>(blocks), kBlock, 0, stream.get()>>>(source, rounded);
  CUDA_CHECK(cudaGetLastError());
}

#define HEADROOM_INSTANTIATE(Format) \
  template void round_rows<Format>(const float*, Matrix<Format::Value>, Stream&);
HEADROOM_INSTANTIATE(Fp32)
HEADROOM_INSTANTIATE(Tf32)
HEADROOM_INSTANTIATE(Fp16)
HEADROOM_INSTANTIATE(Bf16)
#undef HEADROOM_INSTANTIATE

}  // namespace headroom::layered
