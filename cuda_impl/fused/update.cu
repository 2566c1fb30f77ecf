// The end of a step: partial sums of all thread blocks are added up in a fixed order, every parameter is updated, and
// its 16-bit copy goes to its place in the image. Also the loss, and what prepares a network before any step.
//
// A thread block owns one row of a segment, 128 values, or four where each has few partials; of its N warps each adds every
// Nth partial, then the first threads add what the warps have. The order does not depend on anything that happens at
// run time, so neither do the bits.
//   bytes: 4 a partial value from the L2; 8 a parameter, and 16 of its table
#include <algorithm>

#include "device/check.h"
#include "device/device.h"
#include "fused/kernels.h"
#include "machine/dependent_launch.cuh"
#include "machine/formats.cuh"
#include "machine/launch_config.h"
#include "machine/panels.h"
#include "machine/thread.cuh"
#include "rules/optimizer.cuh"

namespace headroom::fused {
namespace {

/// One form of the update: kThreads threads for kRows rows, or a kParts-th of one; each thread adds up values of four
/// columns, and has kAtOnce loads of each row under way. A block of only one row loads its next partials instead of rows.
template <int kRows_, int kParts_, int kThreads_, int kAtOnce_>
struct UpdateForm {
  static constexpr int kRows = kRows_, kParts = kParts_, kThreads = kThreads_, kAtOnce = kAtOnce_;
  static constexpr int kLanes = kWarpgroup / kParts / 4, kGroups = kThreads / kLanes;
  static constexpr int kSharedBytes = kRows * kGroups * kLanes * 16;
  static constexpr bool kForPairs = kThreads == 96;
  /// Parameters are loaded behind the first partials: to find where one is takes a load, which keeps blocks that start late
  /// from their partials. For pairs it takes two registers too many.
  static constexpr bool kParametersLast = kRows == 1 && !kForPairs;
};
using FewPartials = UpdateForm<4, 1, 32 * kFewSplits, 1>;
static_assert(FewPartials::kGroups == kFewSplits);
using SomePartials = UpdateForm<1, 1, 512, 4>;
using ManyPartials = UpdateForm<1, 4, 256, 5>;  // 32 groups * 5 loads: a partial from every SM
// 12 groups * 6 loads, and an SM has all of its 17 blocks of five layers of 128 at once.
using PairPartials = UpdateForm<1, 4, 96, 6>;
static_assert(PairPartials::kGroups * PairPartials::kAtOnce == kPairSplits);
/// Which SMs a pair gets depends on how many blocks of this kernel an SM has held: with more than 32 registers a thread
/// 128x5 takes 110 us instead of 98. So the compiler may not take more; what it would spill fails the build.
constexpr int kPairBlocksOfSm = 65536 / 32 / PairPartials::kThreads;

/// A thread block: on to the next step, then the loss of this one. Blocks of the kernel behind this one start when all
/// of this one's have let them, so they find the step's number before this kernel has ended. Only updates write it, and the
/// one before has ended, so this one reads it before its wait; it writes behind it, as the kernel before may still read.
__device__ void finish_step(const UpdateArguments& arguments) {
  StepState& state = *arguments.state;
  const std::int64_t step = __ldcg(&state.step), following = __ldcg(&state.batch) + 1;
  wait_for_kernel_before();
  if (threadIdx.x == 0) {
    state.step = step + 1;
    state.batch = following == arguments.batches ? 0 : following;
    __threadfence();
  }
  __syncthreads();
  let_next_kernel_start();
  if (threadIdx.x >= 32) return;
  float sum = 0;
  for (int block = static_cast<int>(threadIdx.x); block < arguments.loss_blocks; block += 32)
    sum += arguments.block_losses[block];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
  if (threadIdx.x == 0) arguments.losses[step % arguments.loss_slots] = sum / arguments.mean_of;
}

/// kSlots: of the optimizer.
template <class Format, class Form, int kSlots = 0>
__device__ __forceinline__ void update(const UpdateArguments& arguments) {
  constexpr int kRows = Form::kRows, kAtOnce = Form::kAtOnce, kGroups = Form::kGroups, kLanes = Form::kLanes;
  constexpr int kOwnRange = kWarpgroup / Form::kParts;
  __shared__ float4 sums[kRows][kGroups][kLanes];
  const int block = static_cast<int>(blockIdx.x) / Form::kParts,
            part = static_cast<int>(blockIdx.x) % Form::kParts, thread = static_cast<int>(threadIdx.x);
  if (block == arguments.row_blocks) return finish_step(arguments);
  const UpdateRows own = arguments.rows[block];
  // The parameter that this thread trains at the end; the update of the step before has long ended.
  UpdatePlaces places;
  places.parameter = -1;
  float parameter = 0, slot[kSlots + 1] = {};
  if (thread < kRows * kOwnRange) {
    const int4 four = __ldg(reinterpret_cast<const int4*>(arguments.places) +
                            static_cast<int>(blockIdx.x) * kRows * kOwnRange + thread);
    places = {four.x, {four.y, four.z}};
  }
  const auto load_parameter = [&] {
    if (places.parameter < 0) return;
    const int at = places.parameter & ~kBiasFlag;
    parameter = __ldcg(arguments.parameters + at);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) slot[i] = __ldcg(arguments.slots[i] + at);
  };
  if constexpr (!Form::kParametersLast) load_parameter();
  const int lane = thread % kLanes, group = thread / kLanes;
  const float* partial = arguments.partials + own.partial + part * kOwnRange + 4 * lane;
  const int splits = own.splits, count = own.count;
  const std::int64_t split_stride = own.split_stride;
  wait_for_kernel_before();
  let_next_kernel_start();
  rules::UpdateFactors factors{};
  if constexpr (kSlots > 0)
    factors = arguments.factors[min(__ldcg(arguments.trained_step), arguments.factor_count - 1)];
  // Loads that are under way together are of several partials of one row, or of one partial's rows; then there are no further ones.
  constexpr int kLoads = kRows * kAtOnce;
  static_assert(kRows == 1 || kAtOnce == 1);
  const bool single = kRows == 1 || count == 1;
  float4 value[kLoads];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int split = single ? first + i * kGroups : first, row = single ? 0 : i;
      value[i] =
          split < splits && row < count
              ? __ldcg(reinterpret_cast<const float4*>(partial + split * split_stride + row * kWarpgroup))
              : float4{0, 0, 0, 0};
    }
  };
  float4 sum{0, 0, 0, 0};
  const auto add_up = [&] {
#pragma unroll
    for (const float4& more : value) sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
  };
  int first = group;
  if constexpr (kRows > 1) {  // rows of few partials are there at once
    load(first);
    if (!single)
#pragma unroll
      for (int row = 0; row < kRows; ++row) sums[row][group][lane] = value[row];
    else
      add_up();
    first += kLoads * kGroups;
  }
  if (single) {
    if constexpr (Form::kParametersLast) {
      load(first);
      load_parameter();
      add_up();
      first += kLoads * kGroups;
    }
    for (; first < splits; first += kLoads * kGroups) {
      load(first);
      add_up();
    }
    sums[0][group][lane] = sum;
  }
  __syncthreads();
  if (places.parameter < 0) return;
  const int own_row = thread / kOwnRange, column = thread % kOwnRange;
  float gradient = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) gradient += reinterpret_cast<const float*>(sums[own_row][g])[column];
  if constexpr (kSlots == 0)
    parameter = fmaf(arguments.update_factor, gradient, parameter);
  else if constexpr (kSlots == 1)
    rules::update_with_momentum(factors, gradient * arguments.inverse_loss_scale, parameter, slot[0]);
  else
    rules::update_adam(factors, gradient * arguments.inverse_loss_scale, parameter, slot[0], slot[1]);
#pragma unroll
  for (int i = 0; i < kSlots; ++i) arguments.slots[i][places.parameter & ~kBiasFlag] = slot[i];
  arguments.parameters[places.parameter & ~kBiasFlag] = parameter;
  if ((places.parameter & kBiasFlag) != 0) {
    *reinterpret_cast<float*>(arguments.image + places.bytes[0]) = parameter;
    return;
  }
  const unsigned short rounded = Format::round_weight(parameter);
#pragma unroll
  for (const int byte : places.bytes)
    if (byte >= 0) *reinterpret_cast<unsigned short*>(arguments.image + byte) = rounded;
}

template <class Format, class Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kForPairs ? kPairBlocksOfSm : 0)
    update_kernel(const __grid_constant__ UpdateArguments arguments) {
  update<Format, Form>(arguments);
}
/// An SM is to hold two of these.
template <class Format>
__global__ void __launch_bounds__(FewPartials::kThreads, 2)
    update_few_kernel(const __grid_constant__ UpdateArguments arguments) {
  update<Format, FewPartials>(arguments);
}

template <class Format, class Form, int kSlots>
__global__ void __launch_bounds__(Form::kThreads)
    update_slots_kernel(const __grid_constant__ UpdateArguments arguments) {
  update<Format, Form, kSlots>(arguments);
}

/// Shared memory that a thread block asks for, unused, so that an SM takes no more blocks than its share: the SMs that
/// end the kernel before first would take as many as they have registers for, and the last ones none.
int share_keeping_bytes(int blocks, int threads, int static_bytes) {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  const int sms = device_attribute(cudaDevAttrMultiProcessorCount, device);
  const int share = (blocks + sms - 1) / sms;
  if (share * threads > device_attribute(cudaDevAttrMaxThreadsPerMultiProcessor, device)) return 0;
  const int bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device) / share -
                    device_attribute(cudaDevAttrReservedSharedMemoryPerBlock, device) - static_bytes;
  return bytes / 128 * 128;
}

template <class Form>
void launch_form(void (*kernel)(UpdateArguments), const UpdateArguments& arguments, cudaStream_t stream) {
  const int blocks = Form::kParts * arguments.row_blocks + 1;
  const int bytes = share_keeping_bytes(blocks, Form::kThreads, Form::kSharedBytes);
  allow_shared_bytes(kernel, bytes);
  const LaunchConfig launch(blocks, Form::kThreads, bytes, stream);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, arguments));
}

template <class Format, int kSlots>
void launch_update_of_slots(const UpdateArguments& arguments, cudaStream_t stream) {
  if (arguments.share.rows > 1)
    launch_form<FewPartials>(update_slots_kernel<Format, FewPartials, kSlots>, arguments, stream);
  else
    launch_form<ManyPartials>(update_slots_kernel<Format, ManyPartials, kSlots>, arguments, stream);
}

template <class Format>
void launch_update_of(const UpdateArguments& arguments, cudaStream_t stream) {
  if (arguments.plan.slots == 1) return launch_update_of_slots<Format, 1>(arguments, stream);
  if (arguments.plan.slots == 2) return launch_update_of_slots<Format, 2>(arguments, stream);
  if (arguments.share.rows > 1)
    launch_form<FewPartials>(update_few_kernel<Format>, arguments, stream);
  else if (arguments.share.threads == PairPartials::kThreads)
    launch_form<PairPartials>(update_kernel<Format, PairPartials>, arguments, stream);
  else if (arguments.share.parts > 1)
    launch_form<ManyPartials>(update_kernel<Format, ManyPartials>, arguments, stream);
  else
    launch_form<SomePartials>(update_kernel<Format, SomePartials>, arguments, stream);
}

/// A parameter's value to all its places in the image; in < 0: a bias.
template <class Format>
__device__ void place(const Plan& plan, unsigned char* image, int layer, int out, int in, float value) {
  if (in < 0) {
    *reinterpret_cast<float*>(image + bias_place(plan, layer, out)) = value;
    return;
  }
  const unsigned short rounded = Format::round_weight(value);
  for_each_place(plan, layer, out, in,
                 [&](int byte) { *reinterpret_cast<unsigned short*>(image + byte) = rounded; });
}

/// A thread owns 16 bytes of the panels.
template <class Format>
__global__ void pack_inputs_kernel(const Plan plan, const float* rows /* [batches * batch, inputs] */,
                                   std::int64_t batches, uint4* panels) {
  const std::int64_t index = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int samples = plan.pack, features = samples > 1 ? kPanelColumns / samples : plan.inputs;
  const int tile_pieces = input_tile_bytes(plan) / 16, piece_of_tile = static_cast<int>(index % tile_pieces);
  const int panel = piece_of_tile / (8 * kTileRows), place = piece_of_tile % (8 * kTileRows);
  const bool is_narrow = panel == plan.input_panels;
  const int row = place / (is_narrow ? 2 : 8);
  const int tile = static_cast<int>(index / tile_pieces % plan.tiles);
  const std::int64_t batch = index / tile_pieces / plan.tiles;
  if (batch >= batches) return;
  const int column =
      panel * kPanelColumns + 8 * (is_narrow ? place % 2 ^ (row >> 2 & 1) : place % 8 ^ (row & 7));
  const std::int64_t sample =
      (static_cast<std::int64_t>(tile) * kTileRows + row) * samples + (samples > 1 ? column / features : 0);
  const int first = samples > 1 ? column % features : column;
  union {
    unsigned short value[8];
    uint4 all;
  } piece;
  for (int i = 0; i < 8; ++i) {
    const bool there = sample < plan.batch && first + i < plan.inputs;
    piece.value[i] =
        Format::round(there ? rows[(batch * plan.batch + sample) * plan.inputs + first + i] : 0.0f);
  }
  panels[index] = piece.all;
}

/// A thread owns one parameter, or the bias of a class that is only padding: that never wins and gets no gradient.
template <class Format>
__global__ void make_image_kernel(const Plan plan, const float* parameters, unsigned char* image) {
  const std::int64_t index = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int padding = static_cast<int>(index - plan.parameters) + plan.classes;
  if (index >= plan.parameters) {
    if (padding < padded_classes(plan)) place<Format>(plan, image, plan.hidden, padding, -1, -INFINITY);
    return;
  }
  int layer = 0;
  while (layer < plan.hidden && index >= plan.parameter_begin[layer + 1]) ++layer;
  const int ins = plan.widths[layer], outs = plan.widths[layer + 1];
  const int of_layer = static_cast<int>(index - plan.parameter_begin[layer]);
  if (of_layer < ins * outs)
    place<Format>(plan, image, layer, of_layer / ins, of_layer % ins, parameters[index]);
  else
    place<Format>(plan, image, layer, of_layer - ins * outs, -1, parameters[index]);
}

/// A thread owns one of a sample's kTargetStride values.
__global__ void pack_targets_kernel(const float* rows /* [samples, outputs] */, int outputs,
                                    std::int64_t samples, float* targets) {
  const std::int64_t index = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int column = static_cast<int>(index % kTargetStride);
  if (index < samples * kTargetStride)
    targets[index] = column < outputs ? rows[index / kTargetStride * outputs + column] : 0.0f;
}

__global__ void set_step_kernel(StepState* state, std::int64_t step, std::int64_t batches) {
  *state = {step, step % batches};
}

unsigned blocks_for(std::int64_t threads) { return static_cast<unsigned>((threads + 255) / 256); }

}  // namespace

void launch_update(Precision precision, const UpdateArguments& arguments, cudaStream_t stream) {
  if (precision == Precision::kBf16)
    launch_update_of<Bf16>(arguments, stream);
  else
    launch_update_of<Fp16>(arguments, stream);
}

void pack_inputs(Precision precision, const Plan& plan, const float* rows, std::int64_t batches,
                 unsigned char* panels, cudaStream_t stream) {
  const std::int64_t pieces = batches * plan.tiles * (input_tile_bytes(plan) / 16);
  auto* pieces_at = reinterpret_cast<uint4*>(panels);
  if (precision == Precision::kBf16)
    pack_inputs_kernel<Bf16><<<blocks_for(pieces), 256, 0, stream>>>(plan, rows, batches, pieces_at);
  else
    pack_inputs_kernel<Fp16><<<blocks_for(pieces), 256, 0, stream>>>(plan, rows, batches, pieces_at);
  CUDA_CHECK(cudaGetLastError());
}

void pack_targets(const float* rows, int outputs, std::int64_t samples, float* targets, cudaStream_t stream) {
  pack_targets_kernel<<<blocks_for(samples * kTargetStride), 256, 0, stream>>>(rows, outputs, samples,
                                                                               targets);
  CUDA_CHECK(cudaGetLastError());
}

void make_image(Precision precision, const Plan& plan, const float* parameters, unsigned char* image,
                cudaStream_t stream) {
  const std::int64_t values = plan.parameters + padded_classes(plan) - plan.classes;
  if (precision == Precision::kBf16)
    make_image_kernel<Bf16><<<blocks_for(values), 256, 0, stream>>>(plan, parameters, image);
  else
    make_image_kernel<Fp16><<<blocks_for(values), 256, 0, stream>>>(plan, parameters, image);
  CUDA_CHECK(cudaGetLastError());
}

void set_step(StepState* state, std::int64_t step, std::int64_t batches, cudaStream_t stream) {
  set_step_kernel<<<1, 1, 0, stream>>>(state, step, batches);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace headroom::fused
