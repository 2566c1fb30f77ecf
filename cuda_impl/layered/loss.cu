// The loss of each sample and its gradient with respect to the outputs.
//
// Softmax cross-entropy: a warp owns one sample and goes over its logits three times: largest, sum of exponentials, gradient. They
// are read from L2 (10 classes are one pass of a third of the warp; 65536 classes are 2048). Everything is
// fp32; the gradient is rounded when it is stored, because that is the value that enters both backward
// products and the bias sum.
//   in:  logits [batch, classes] fp32, labels
//   out: gradient [batch, classes] = (softmax - one-hot) * gradient_scale; row_losses [batch] fp32
// Losses over fp32 targets: as many lanes own a sample as it has outputs, rounded up to a power of two, a warp at most.
//   in:  outputs [batch, outputs] fp32, targets
//   out: gradient [batch, outputs] = derivative of each output's term * gradient_scale; row_losses [batch] fp32
// The losses of the samples are added up in finish_step(), in a fixed order.
#include "layered/kernels.h"
#include "layered/product.cuh"
#include "rules/loss.cuh"

namespace headroom::layered {
namespace {

constexpr int kWarps = 8;

__device__ float warp_maximum(float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

template <class Format>
__global__ void __launch_bounds__(32 * kWarps)
    loss_gradient_kernel(Matrix<const float> logits /* [batch, classes] */, const std::int32_t* labels,
                         const StepState* state, float gradient_scale,
                         Matrix<typename Format::Value> gradient /* [batch, classes] */,
                         float* row_losses /* [batch] */) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= logits.rows) return;
  const std::int32_t label = labels[state->batch * logits.rows + row];
  const float* row_logits = logits.data + row * logits.pitch;
  typename Format::Value* row_gradient = gradient.data + row * gradient.pitch;

  float largest = -INFINITY;
  for (std::int64_t c = lane; c < logits.columns; c += 32) largest = fmaxf(largest, row_logits[c]);
  largest = warp_maximum(largest);
  float sum = 0;
  for (std::int64_t c = lane; c < logits.columns; c += 32) sum += expf(row_logits[c] - largest);
  sum = warp_sum(sum);
  for (std::int64_t c = lane; c < logits.columns; c += 32) {
    const float probability = expf(row_logits[c] - largest) / sum;
    row_gradient[c] = Format::round(rules::cross_entropy_gradient(probability, c == label) * gradient_scale);
  }
  if (lane == 0) row_losses[row] = logf(sum) - (row_logits[label] - largest);
}

template <class Format>
__global__ void __launch_bounds__(32 * kWarps)
    loss_of_targets_kernel(Loss loss, Matrix<const float> outputs /* [batch, outputs] */,
                           const float* targets /* [batches * batch, outputs], not padded */,
                           const StepState* state, float gradient_scale, int lanes,
                           Matrix<typename Format::Value> gradient /* [batch, outputs] */,
                           float* row_losses /* [batch] */) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % lanes;
  const std::int64_t row = std::int64_t{blockIdx.x} * (32 * kWarps / lanes) + thread / lanes;
  const bool inside = row < outputs.rows;  // no lane leaves before the warp has added up
  float sum = 0;
  if (inside) {
    const float* row_targets = targets + (state->batch * outputs.rows + row) * outputs.columns;
    for (std::int64_t c = lane; c < outputs.columns; c += lanes) {
      const rules::LossTerm term =
          rules::loss_term(loss, outputs.data[row * outputs.pitch + c], row_targets[c]);
      gradient.data[row * gradient.pitch + c] = Format::round(term.gradient * gradient_scale);
      sum += term.loss;
    }
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (inside && lane == 0) row_losses[row] = sum / static_cast<float>(outputs.columns);
}

constexpr int kFinishThreads = 512;

/// One block. Thread t adds rows t, t + 512, ...; then pairs of threads add up in a fixed tree.
__global__ void __launch_bounds__(kFinishThreads)
    finish_step_kernel(const float* row_losses /* [batch] */, std::int64_t batch, float* losses,
                       std::int64_t losses_size, std::int64_t batches, StepState* state) {
  __shared__ float sums[kFinishThreads];
  float sum = 0;
  for (std::int64_t row = threadIdx.x; row < batch; row += kFinishThreads) sum += row_losses[row];
  sums[threadIdx.x] = sum;
  for (int half = kFinishThreads / 2; half > 0; half /= 2) {
    __syncthreads();  // the sums of the round before are written
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) {
    losses[state->step % losses_size] = sums[0] / static_cast<float>(batch);
    ++state->step;
    state->batch = state->batch + 1 == batches ? 0 : state->batch + 1;
  }
}

__global__ void set_step_kernel(StepState* state, std::int64_t step, std::int64_t batches) {
  *state = {step, step % batches};
}

}  // namespace

template <class Format>
void loss_gradient(Matrix<const float> logits, const std::int32_t* labels, const StepState* state,
                   float gradient_scale, Matrix<typename Format::Value> gradient, float* row_losses,
                   Stream& stream) {
  require_equal("loss: rows of the gradient against the batch", gradient.rows, logits.rows);
  require_equal("loss: columns of the gradient against the classes", gradient.columns, logits.columns);
  loss_gradient_kernel<Format>
      <<<static_cast<unsigned>(tiles(logits.rows, kWarps)), 32 * kWarps, 0, stream.get()>>>(
          logits, labels, state, gradient_scale, gradient, row_losses);
  CUDA_CHECK(cudaGetLastError());
}

template <class Format>
void loss_of_targets(Loss loss, Matrix<const float> outputs, const float* targets, const StepState* state,
                     float gradient_scale, Matrix<typename Format::Value> gradient, float* row_losses,
                     Stream& stream) {
  require_equal("loss: rows of the gradient against the batch", gradient.rows, outputs.rows);
  require_equal("loss: columns of the gradient against the outputs", gradient.columns, outputs.columns);
  int lanes = 1;
  while (lanes < 32 && lanes < outputs.columns) lanes *= 2;
  const auto blocks = static_cast<unsigned>(tiles(outputs.rows, 32 * kWarps / lanes));
  loss_of_targets_kernel<Format><<<blocks, 32 * kWarps, 0, stream.get()>>>(
      loss, outputs, targets, state, gradient_scale, lanes, gradient, row_losses);
  CUDA_CHECK(cudaGetLastError());
}

void finish_step(const float* row_losses, std::int64_t batch, float* losses, std::int64_t losses_size,
                 std::int64_t batches, StepState* state, Stream& stream) {
  finish_step_kernel<<<1, kFinishThreads, 0, stream.get()>>>(row_losses, batch, losses, losses_size, batches,
                                                             state);
  CUDA_CHECK(cudaGetLastError());
}

void set_step(StepState* state, std::int64_t step, std::int64_t batches, Stream& stream) {
  require_shape(batches >= 1, "set step: batches of the data set", batches, 1);
  set_step_kernel<<<1, 1, 0, stream.get()>>>(state, step, batches);
  CUDA_CHECK(cudaGetLastError());
}

#define HEADROOM_INSTANTIATE(Format)                                                                      \
  template void loss_gradient<Format>(Matrix<const float>, const std::int32_t*, const StepState*, float,  \
                                      Matrix<Format::Value>, float*, Stream&);                            \
  template void loss_of_targets<Format>(Loss, Matrix<const float>, const float*, const StepState*, float, \
                                        Matrix<Format::Value>, float*, Stream&);
HEADROOM_INSTANTIATE(Fp32)
HEADROOM_INSTANTIATE(Tf32)
HEADROOM_INSTANTIATE(Fp16)
HEADROOM_INSTANTIATE(Bf16)
#undef HEADROOM_INSTANTIATE

}  // namespace headroom::layered
