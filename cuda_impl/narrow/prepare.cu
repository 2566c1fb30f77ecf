#include <stdexcept>

#include "device/check.h"
#include "narrow/prepare.h"
#include "narrow/products.cuh"

namespace headroom::narrow {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(std::int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }
__device__ std::int64_t thread_of_grid() { return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

/// Where a value of [batches][tiles][rows][stride] belongs: its sample, or -1 for a row behind the batch.
struct SamplePlace {
  std::int64_t sample;
  int column;
  __device__ SamplePlace(const Plan& plan, std::int64_t index, int row_stride) {
    column = static_cast<int>(index % row_stride);
    const std::int64_t rows = index / row_stride, padded = std::int64_t{tiles(plan)} * tile_rows(plan);
    const std::int64_t row = rows % padded;
    sample = row < plan.batch ? rows / padded * plan.batch + row : -1;
  }
};
std::int64_t values_of(const Plan& plan, std::int64_t batches, int row_stride) {
  return batches * tiles(plan) * tile_rows(plan) * row_stride;
}

template <class Format>
__global__ void __launch_bounds__(kThreads)
    pack_inputs_kernel(const Plan plan, const float* features, std::int64_t count,
                       typename Format::Value* inputs) {
  const std::int64_t index = thread_of_grid();
  if (index >= count) return;
  const SamplePlace place(plan, index, activation_stride(plan, 0));
  const int width = plan.widths[0];
  float value = place.column == width ? 1.0f : 0.0f;
  if (place.column < width && place.sample >= 0) value = features[place.sample * width + place.column];
  inputs[index] = Format::input(value);
}

__global__ void __launch_bounds__(kThreads)
    pack_targets_kernel(const Plan plan, const std::uint32_t* words, int columns, std::int64_t count,
                        std::uint32_t* targets) {
  const std::int64_t index = thread_of_grid();
  if (index >= count) return;
  const SamplePlace place(plan, index, target_stride(plan));
  targets[index] =
      place.column < columns && place.sample >= 0 ? words[place.sample * columns + place.column] : 0u;
}

template <class Format>
__global__ void __launch_bounds__(kThreads)
    place_kernel(const Plan plan, const float* flat, float* placed, unsigned char* image) {
  const int sum = static_cast<int>(thread_of_grid());
  if (sum >= sum_floats(plan)) return;
  const Target target = target_of(plan, sum);
  const float value = target.layer == 0 ? 0.0f : flat[parameter_of(plan, target)];
  placed[sum] = value;
  if (target.layer == 0 || image == nullptr) return;
  const int place = place_of(plan, target);
  if (place >= bias_begin(plan, 1))
    *reinterpret_cast<float*>(image + place) = value;
  else
    *reinterpret_cast<typename Format::Value*>(image + place) = Format::weight(value);
}

__global__ void __launch_bounds__(kThreads) places_kernel(const Plan plan, std::int32_t* places) {
  const int sum = static_cast<int>(thread_of_grid());
  if (sum >= sum_floats(plan)) return;
  const Target target = target_of(plan, sum);
  places[sum] = target.layer == 0 ? -1 : place_of(plan, target);
}

__global__ void __launch_bounds__(kThreads)
    collect_kernel(const Plan plan, const float* placed, float* flat) {
  const int sum = static_cast<int>(thread_of_grid());
  if (sum >= sum_floats(plan)) return;
  const Target target = target_of(plan, sum);
  if (target.layer != 0) flat[parameter_of(plan, target)] = placed[sum];
}

/// take(format), a value of the format that the plan has.
template <class Take>
void with_format(const Plan& plan, const Take& take) {
  switch (static_cast<Precision>(plan.precision)) {
    case Precision::kFp32:
      return take(Fp32());
    case Precision::kTf32:
      return take(Tf32());
    case Precision::kFp16:
      return take(Sixteen<machine::Fp16>());
    case Precision::kBf16:
      return take(Sixteen<machine::Bf16>());
  }
  throw std::logic_error("narrow: no such precision");
}

}  // namespace

void pack_inputs(const Plan& plan, const float* features, std::int64_t batches, unsigned char* inputs,
                 cudaStream_t stream) {
  const std::int64_t count = values_of(plan, batches, activation_stride(plan, 0));
  with_format(plan, [&]<class Format>(Format) {
    auto* to = reinterpret_cast<typename Format::Value*>(inputs);
    pack_inputs_kernel<Format><<<blocks_for(count), kThreads, 0, stream>>>(plan, features, count, to);
  });
  CUDA_CHECK(cudaGetLastError());
}

void pack_targets(const Plan& plan, const std::uint32_t* words, int columns, std::int64_t batches,
                  unsigned char* targets, cudaStream_t stream) {
  const std::int64_t count = values_of(plan, batches, target_stride(plan));
  auto* to = reinterpret_cast<std::uint32_t*>(targets);
  pack_targets_kernel<<<blocks_for(count), kThreads, 0, stream>>>(plan, words, columns, count, to);
  CUDA_CHECK(cudaGetLastError());
}

void place_parameters(const Plan& plan, const float* flat, float* placed, unsigned char* image,
                      cudaStream_t stream) {
  with_format(plan, [&]<class Format>(Format) {
    place_kernel<Format><<<blocks_for(sum_floats(plan)), kThreads, 0, stream>>>(plan, flat, placed, image);
  });
  CUDA_CHECK(cudaGetLastError());
}

void set_places(const Plan& plan, std::int32_t* places, cudaStream_t stream) {
  places_kernel<<<blocks_for(sum_floats(plan)), kThreads, 0, stream>>>(plan, places);
  CUDA_CHECK(cudaGetLastError());
}

void collect_parameters(const Plan& plan, const float* placed, float* flat, cudaStream_t stream) {
  collect_kernel<<<blocks_for(sum_floats(plan)), kThreads, 0, stream>>>(plan, placed, flat);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace headroom::narrow
