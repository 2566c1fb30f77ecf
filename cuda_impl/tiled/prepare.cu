// Between the flat arrays that the host knows and the orders in which the step reads: once for a data set or a state.
#include "device/check.h"
#include "machine/formats.cuh"
#include "tiled/kernels.h"

namespace headroom::tiled {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(std::int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }
__device__ std::int64_t thread_of_grid() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

struct Fp32 {
  MACHINE_DEVICE static float round(float value) { return value; }
  MACHINE_DEVICE static float round_weight(float value) { return value; }
};
struct Tf32 {
  MACHINE_DEVICE static float round(float value) { return machine::round_tf32(value); }
  MACHINE_DEVICE static float round_weight(float value) { return machine::round_tf32(value); }
};

template <class Format, class Value>
__global__ void __launch_bounds__(kThreads)
    place_weights_kernel(const float* weights /* [out, in] */, WeightPlaces places, float* placed,
                         Value* copy /* [out, pitch], or null */, std::int64_t pitch,
                         Value* turned /* [in, turned_pitch], or null */, std::int64_t turned_pitch) {
  const std::int64_t element = thread_of_grid();
  if (element >= std::int64_t{places.out} * places.in) return;
  const int row = static_cast<int>(element / places.in), column = static_cast<int>(element % places.in);
  const float weight = weights[element];
  placed[places.place(row, column)] = weight;
  if (copy != nullptr) copy[row * pitch + column] = Format::round_weight(weight);
  if (turned != nullptr) turned[column * turned_pitch + row] = Format::round_weight(weight);
}

__global__ void __launch_bounds__(kThreads)
    collect_weights_kernel(const float* placed, WeightPlaces places, float* weights /* [out, in] */) {
  const std::int64_t element = thread_of_grid();
  if (element >= std::int64_t{places.out} * places.in) return;
  const int row = static_cast<int>(element / places.in), column = static_cast<int>(element % places.in);
  weights[element] = placed[places.place(row, column)];
}

template <class Format, class Value>
__global__ void __launch_bounds__(kThreads)
    round_features_kernel(const float* features /* [rows, columns] */, std::int64_t rows,
                          std::int64_t columns, Value* rounded /* [rows, pitch] */, std::int64_t pitch) {
  const std::int64_t element = thread_of_grid();
  if (element >= rows * columns) return;
  rounded[element / columns * pitch + element % columns] = Format::round(features[element]);
}

__global__ void __launch_bounds__(kThreads)
    turn_features_kernel(const float* features /* [batches, batch, columns] */, std::int64_t count,
                         std::int64_t batch, std::int64_t columns,
                         float* turned /* [batches, columns, pitch] */, std::int64_t pitch) {
  const std::int64_t element = thread_of_grid();
  if (element >= count) return;
  const std::int64_t sample = element / columns, column = element % columns;
  turned[(sample / batch * columns + column) * pitch + sample % batch] =
      machine::round_tf32(features[element]);
}

/// Calls work(format, value of its type).
template <class Work>
void with_format(Precision precision, const Work& work) {
  switch (precision) {
    case Precision::kFp32:
      return work(Fp32{}, float{});
    case Precision::kTf32:
      return work(Tf32{}, float{});
    case Precision::kFp16:
      return work(machine::Fp16{}, std::uint16_t{});
    case Precision::kBf16:
      return work(machine::Bf16{}, std::uint16_t{});
  }
}

}  // namespace

void place_weights(Precision precision, const float* weights, const WeightPlaces& places, float* placed,
                   void* copy, std::int64_t pitch, void* turned, std::int64_t turned_pitch,
                   cudaStream_t stream) {
  const unsigned blocks = blocks_for(std::int64_t{places.out} * places.in);
  with_format(precision, [&](auto format, auto value) {
    using Format = decltype(format);
    using Value = decltype(value);
    place_weights_kernel<Format, Value><<<blocks, kThreads, 0, stream>>>(
        weights, places, placed, static_cast<Value*>(copy), pitch, static_cast<Value*>(turned), turned_pitch);
  });
  CUDA_CHECK(cudaGetLastError());
}

void collect_weights(const float* placed, const WeightPlaces& places, float* weights, cudaStream_t stream) {
  const unsigned blocks = blocks_for(std::int64_t{places.out} * places.in);
  collect_weights_kernel<<<blocks, kThreads, 0, stream>>>(placed, places, weights);
  CUDA_CHECK(cudaGetLastError());
}

void round_features(Precision precision, const float* features, std::int64_t rows, std::int64_t columns,
                    void* rounded, std::int64_t pitch, cudaStream_t stream) {
  const unsigned blocks = blocks_for(rows * columns);
  with_format(precision, [&](auto format, auto value) {
    using Format = decltype(format);
    using Value = decltype(value);
    round_features_kernel<Format, Value>
        <<<blocks, kThreads, 0, stream>>>(features, rows, columns, static_cast<Value*>(rounded), pitch);
  });
  CUDA_CHECK(cudaGetLastError());
}

void turn_features(const float* features, std::int64_t batches, std::int64_t batch, std::int64_t columns,
                   float* turned, std::int64_t pitch, cudaStream_t stream) {
  const std::int64_t count = batches * batch * columns;
  turn_features_kernel<<<blocks_for(count), kThreads, 0, stream>>>(features, count, batch, columns, turned,
                                                                   pitch);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace headroom::tiled
