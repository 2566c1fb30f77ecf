// Many training steps of a narrow network in one launch, in any precision, with any activation, loss and optimizer.
//
// Every thread block has the whole network's weights in shared memory, takes its tiles of the batch forward and back, and keeps the sums
// of all weight gradients in registers meanwhile. What surprises: nothing but these sums leaves a block. At the end of a step each
// block stores its own, adds up its share of the parameters over all blocks in the blocks' order, trains them, and all blocks fetch
// all weights anew.
//
//   a tile     forward a layer at a time, loss, and back: gradients of activations, sums of weight gradients
//   a step     its tiles; store sums, meet, add up and update, meet, fetch weights
//
// Blocks meet in their cluster, where the batch is small, or at a counter in device memory.
// Which thread adds what in which order is fixed when the kernel is compiled, so two runs give the same bits.
#pragma once

#include "machine/cluster.cuh"
#include "machine/copy.cuh"
#include "machine/memory.cuh"
#include "machine/reductions.cuh"
#include "machine/thread.cuh"
#include "machine/wait.cuh"
#include "narrow/arguments.h"
#include "narrow/products.cuh"
#include "rules/loss.cuh"
#include "rules/optimizer.cuh"

namespace headroom::narrow {

template <class Network>  // has its plan, kPlan
class Step {
  static constexpr Plan P = Network::kPlan;
  static constexpr Places kAt = places(P);
  using Format = FormatOf<P.precision>;
  using Value = typename Format::Value;
  static constexpr Activation kActivation = static_cast<Activation>(P.activation);
  static constexpr Loss kLoss = static_cast<Loss>(P.loss);
  static constexpr int kThreads = threads(P), kRowsOfTile = tile_rows(P), kTall = P.tall;
  static constexpr int kOutputs = P.widths[P.layers];
  static constexpr int kTiles = tiles(P), kWarps = warps(P), kStripRows = strip_rows(P);
  static constexpr int kImageBytes = image_bytes(P), kInputBytes = activation_bytes(P, 0),
                       kTargetBytes = target_bytes(P), kTargetStride = target_stride(P);
  static constexpr int kBiases = bias_begin(P, 1), kSumFours = sum_floats(P) / 4;
  static constexpr int kOwned = owned_fours(P), kParts = sum_parts(P);
  static constexpr int kParametersOfThread = divide_up(4 * kOwned, kThreads);
  static constexpr int kAtOnce = smaller(kParametersOfThread, 8);

  // Of `kAt`, as numbers: device code may not ask a constant for an element.
  static constexpr int kInputs0 = kAt.inputs[0], kInputs1 = kAt.inputs[1];
  static constexpr int kTargets0 = kAt.targets[0], kTargets1 = kAt.targets[1];
  template <int kLayer>
  static constexpr int kActivations = kAt.activations[kLayer];
  template <int kLayer>
  static constexpr int kKept = kAt.kept[kLayer];
  template <int kLayer>
  static constexpr int kGradients = kAt.gradients[kLayer % 2];

  const Arguments& a_;
  unsigned char* const memory_;
  const int thread_, block_, lane_, warp_;
  const int strip_, member_;  ///< of the team
  float sums_[larger(1, kept_pieces_of_warp(P))][4];
  float loss_ = 0;                ///< of this lane's rows
  std::uint32_t meetings_ = 0;
#ifdef NARROW_TRACE
  int marks_ = 0;
#endif
  float value_[kAtOnce], slot_[2][kAtOnce];  ///< parameters that this thread trains next

 public:
  MACHINE_DEVICE explicit Step(const Arguments& arguments)
      : a_(arguments),
        memory_(machine::shared_memory()),
        thread_(machine::thread_index()),
        block_(static_cast<int>(machine::block_index())),
        lane_(thread_ % 32),
        warp_(machine::uniform(thread_ / 32)),
        strip_(warp_ / P.team),
        member_(warp_ % P.team) {}

  MACHINE_DEVICE void run() {
    clear();
    const int steps = static_cast<int>(a_.steps);
    int batch = static_cast<int>(a_.first_step % a_.batches), buffer = 0;
    fetch_samples(batch, block_, 0);
    fetch_image();
    for (int step = 0; step < steps; ++step) {
      trace(true);
#pragma unroll
      for (auto& piece : sums_)
#pragma unroll
        for (float& sum : piece) sum = 0;
      loss_ = 0;
      const int next_batch = batch + 1 == a_.batches ? 0 : batch + 1;
#pragma unroll 1
      for (int tile = block_; tile < kTiles; tile += P.blocks) {
        machine::copy_async_wait_all();
        machine::block_sync();  // the samples are there, and all have done with the tile before
        trace();
        const bool is_last = tile + P.blocks >= kTiles;
        if (!is_last || step + 1 < steps)
          fetch_samples(is_last ? next_batch : batch, is_last ? block_ : tile + P.blocks, buffer ^ 1);
        take(tile, buffer, tile == block_);
        buffer ^= 1;
      }
      store_sums();
      load_parameters(0);
      trace();
      if (meet()) return;
      trace();
      add_up_and_update(step);
      trace();
      if (meet()) return;
      trace();
      if (step + 1 < steps) fetch_image();
      batch = next_batch;
    }
  }

 private:
  /// For measurements: see kTraceMarks.
  MACHINE_DEVICE void trace([[maybe_unused]] bool is_step = false) {
#ifdef NARROW_TRACE
    if (is_step) marks_ = 0;
    if (thread_ == 0 && block_ == 0 && marks_ < kTraceMarks) a_.trace[marks_] = machine::cycles();
    ++marks_;
#endif
  }

  MACHINE_DEVICE Value* values(int place) const { return reinterpret_cast<Value*>(memory_ + place); }
  MACHINE_DEVICE float* floats(int place) const { return reinterpret_cast<float*>(memory_ + place); }
  MACHINE_DEVICE int g() const { return lane_ / 4; }
  MACHINE_DEVICE int t() const { return lane_ % 4; }
  /// Of the tile; the first of the strip, and this lane's.
  MACHINE_DEVICE int strip_row() const { return strip_ * kStripRows; }
  MACHINE_DEVICE int row_of(int i, int half) const { return strip_row() + 16 * i + g() + 8 * half; }

  // ---- before the first step

  /// All shared memory but what copies bring; padding stays as it is here. And where the own parameters lie.
  MACHINE_DEVICE void clear() {
    for (int at = kAt.kept_begin + 16 * thread_; at < kAt.end; at += 16 * kThreads)
      *reinterpret_cast<uint4*>(memory_ + at) = make_uint4(0, 0, 0, 0);
    machine::block_sync();
    write_ones<1>();
    int* own = reinterpret_cast<int*>(memory_ + kAt.own_places);
    for (int i = thread_; i < 4 * kOwned; i += kThreads) own[i] = a_.places[4 * kOwned * block_ + i];
  }
  template <int kLayer>
  MACHINE_DEVICE void write_ones() {
    if constexpr (kLayer < P.layers) {
      constexpr int kStride = activation_stride(P, kLayer), kWidth = P.widths[kLayer];
      for (int row = thread_; row < kRowsOfTile; row += kThreads)
        Format::store_pair(values(kActivations<kLayer>) + row * kStride + kWidth / 2 * 2,
                           kWidth % 2 == 0 ? 1.0f : 0.0f, kWidth % 2 == 0 ? 0.0f : 1.0f);
      write_ones<kLayer + 1>();
    }
  }

  template <int kBytes>
  MACHINE_DEVICE void copy(int to, const unsigned char* from) {
    static_assert(kBytes % 16 == 0);
#pragma unroll 4
    for (int at = 16 * thread_; at < kBytes; at += 16 * kThreads)
      machine::copy_async16(memory_ + to + at, from + at);
  }
  MACHINE_DEVICE void fetch_samples(int batch, int tile, int buffer) {
    const std::int64_t which = std::int64_t{batch} * kTiles + tile;
    copy<kInputBytes>(buffer == 0 ? kInputs0 : kInputs1, a_.inputs + which * kInputBytes);
    copy<kTargetBytes>(buffer == 0 ? kTargets0 : kTargets1, a_.targets + which * kTargetBytes);
  }
  MACHINE_DEVICE void fetch_image() { copy<kImageBytes>(0, a_.image); }

  // ---- a tile

  MACHINE_DEVICE void take(int tile, int buffer, bool is_first) {
    const Value* inputs = values(buffer == 0 ? kInputs0 : kInputs1);
    forward<1>(inputs);
    loss(tile, inputs, floats(buffer == 0 ? kTargets0 : kTargets1));
    backward<P.layers>(inputs, is_first);
  }
  template <int kLayer>
  MACHINE_DEVICE const Value* activations(const Value* inputs) const {
    return kLayer == 0 ? inputs : values(kActivations<kLayer>);
  }
  MACHINE_DEVICE void meet_team() {
    if constexpr (P.team == 1)
      machine::warp_sync();
    else if constexpr (P.strips == 1)
      machine::block_sync();
    else
      machine::named_barrier<32 * P.team>(1 + strip_);
  }

  /// Whether a warp has no such piece of its columns: where they cannot be shared out evenly, the last of a team multiplies what lies
  /// behind them, and leaves it.
  template <int kWidth, int kPieces>
  MACHINE_DEVICE static bool is_behind(int piece) {
    constexpr int kAll = divide_up(kWidth, kColumns);
    return kAll % kPieces != 0 && piece >= kAll;
  }

  /// sums = a strip's rows of the activations times the weights of this warp's outputs.
  template <int kLayer, int kPieces>
  MACHINE_DEVICE void outputs(const Value* inputs, int first, float (&sums)[kTall][kPieces][4]) {
    constexpr int kIn = activation_stride(P, kLayer - 1), kWeights = weight_stride(P, kLayer),
                  kTerms = round_up(P.widths[kLayer - 1], depth(P));
    constexpr int kBias = bias_begin(P, kLayer), kWeightsBegin = weight_begin(P, kLayer);
    const float* bias = floats(kBias) + 8 * first + 2 * t();
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const float2 two = *reinterpret_cast<const float2*>(bias + 8 * j);
#pragma unroll
      for (int i = 0; i < kTall; ++i)
        sums[i][j][0] = sums[i][j][2] = two.x, sums[i][j][1] = sums[i][j][3] = two.y;
    }
    Product<Format>::template add<Lies::kByRows, Lies::kByColumns, kTerms>(
        sums, activations<kLayer - 1>(inputs) + strip_row() * kIn, kIn,
        values(kWeightsBegin) + 8 * first * kWeights, kWeights, lane_);
  }

  template <int kLayer>
  MACHINE_DEVICE void forward(const Value* inputs) {
    if constexpr (kLayer < P.layers) {
      constexpr int kAll = divide_up(P.widths[kLayer], kColumns), kPieces = divide_up(kAll, P.team);
      const int first = member_ * kPieces;
      if (first < kAll) {
        float sums[kTall][kPieces][4];
        outputs<kLayer>(inputs, first, sums);
        activate<kLayer>(first, sums);
      }
      trace();
      meet_team();
      forward<kLayer + 1>(inputs);
    }
  }
  template <int kLayer, int kPieces>
  MACHINE_DEVICE void activate(int first, const float (&sums)[kTall][kPieces][4]) {
    constexpr int kStride = activation_stride(P, kLayer), kWidth = P.widths[kLayer];
#pragma unroll
    for (int i = 0; i < kTall; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
          if (is_behind<kWidth, kPieces>(first + j)) continue;
          const int column = 8 * (first + j) + 2 * t(), at = row_of(i, half) * kStride + column;
          const float z[2] = {sums[i][j][2 * half], sums[i][j][2 * half + 1]};
          if constexpr (keeps_sums(P)) Format::store_pair(values(kKept<kLayer>) + at, z[0], z[1]);
          float h[2] = {activated<Format>(kActivation, z[0]), activated<Format>(kActivation, z[1])};
          if constexpr (kWidth % kColumns != 0) {
            if (column == kWidth) h[0] = 1;
            if (column + 1 == kWidth) h[1] = 1;
          }
          Format::store_pair(values(kActivations<kLayer>) + at, h[0], h[1]);
        }
  }

  /// The first of a team makes the loss of the strip's rows and its gradient.
  MACHINE_DEVICE void loss(int tile, const Value* inputs, const float* targets) {
    if (member_ != 0) return;
    constexpr int kPieces = divide_up(kOutputs, kColumns), kStride = gradient_stride(P, P.layers);
    float sums[kTall][kPieces][4];
    outputs<P.layers>(inputs, 0, sums);
#pragma unroll
    for (int i = 0; i < kTall; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(i, half);
        const bool inside = tile * kRowsOfTile + row < P.batch;
        float* z[kPieces];
#pragma unroll
        for (int j = 0; j < kPieces; ++j) z[j] = sums[i][j] + 2 * half;
        const float of_row = kLoss == Loss::kCrossEntropy
                                 ? cross_entropy(z, static_cast<int>(float_to_bits(targets[row])))
                                 : loss_of_targets(z, targets + row * kTargetStride);
        if (inside) loss_ += of_row;
        const float scale = a_.gradient_scale;
#pragma unroll
        for (int j = 0; j < kPieces; ++j)
          Format::store_pair(values(kGradients<P.layers>) + row * kStride + 8 * j + 2 * t(),
                             inside ? z[j][0] * scale : 0.0f, inside ? z[j][1] * scale : 0.0f);
      }
  }
  /// z: this lane's outputs of a row, then the loss's derivatives. Returns this lane's share of the loss.
  template <int kPieces>
  MACHINE_DEVICE float cross_entropy(float* (&z)[kPieces], int label) {
    float largest = -INFINITY, sum = 0, of_label = 0;
    const auto each = [&](const auto& take) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) take(8 * j + 2 * t() + c, z[j][c]);
    };
    each([&](int column, float& value) {
      if (column < kOutputs) largest = fmaxf(largest, value);
    });
    largest = machine::quad_maximum(largest);
    each([&](int column, float& value) {
      if (column == label) of_label = value - largest;
      value = column < kOutputs ? expf(value - largest) : 0.0f;
      sum += value;
    });
    sum = machine::quad_sum(sum);
    of_label = machine::quad_sum(of_label);
    const float inverse = 1 / sum;
    each([&](int column, float& value) {
      value = rules::cross_entropy_gradient(value * inverse, column == label);
    });
    return t() == 0 ? rules::cross_entropy(sum, of_label) : 0;
  }
  template <int kPieces>
  MACHINE_DEVICE float loss_of_targets(float* (&z)[kPieces], const float* targets) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = 8 * j + 2 * t() + c;
        if (column < kOutputs) {
          const rules::LossTerm term = rules::loss_term(kLoss, z[j][c], targets[column]);
          sum += term.loss;
          z[j][c] = term.gradient;
        } else {
          z[j][c] = 0;
        }
      }
    return sum;
  }

  template <int kLayer>
  MACHINE_DEVICE void backward(const Value* inputs, bool is_first) {
    if constexpr (kLayer > 0) {
      trace();
      machine::block_sync();  // all rows' gradients of this layer are there
      if constexpr (kLayer > 1) pass_back<kLayer>();
      trace();
      add_weight_gradients<kLayer>(inputs, is_first);
      backward<kLayer - 1>(inputs, is_first);
    }
  }
  /// Gradients of the layer before, of the strip's rows.
  template <int kLayer>
  MACHINE_DEVICE void pass_back() {
    constexpr int kBefore = kLayer - 1, kWidth = P.widths[kBefore];
    constexpr int kAll = divide_up(P.widths[kBefore], kColumns), kPieces = divide_up(kAll, P.team);
    constexpr int kTerms = round_up(P.widths[kLayer], depth(P));
    constexpr int kOut = gradient_stride(P, kLayer), kWeights = weight_stride(P, kLayer),
                  kStride = activation_stride(P, kBefore), kWeightsBegin = weight_begin(P, kLayer);
    const int first = member_ * kPieces;
    if (first >= kAll) return;
    float sums[kTall][kPieces][4] = {};
    Product<Format>::template add<Lies::kByRows, Lies::kByRows, kTerms>(
        sums, values(kGradients<kLayer>) + strip_row() * kOut, kOut,
        values(kWeightsBegin) + 8 * first, kWeights, lane_);
    constexpr int kFrom = keeps_sums(P) ? kKept<kBefore> : kActivations<kBefore>;
    const Value* kept = values(kFrom);
#pragma unroll
    for (int i = 0; i < kTall; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
          if (is_behind<kWidth, kPieces>(first + j)) continue;
          const int at = row_of(i, half) * kStride + 8 * (first + j) + 2 * t();
          const float2 of = Format::load_pair(kept + at);
          Format::store_pair(values(kGradients<kBefore>) + at,
                             passed_back<Format>(kActivation, of.x, sums[i][j][2 * half]),
                             passed_back<Format>(kActivation, of.y, sums[i][j][2 * half + 1]));
        }
  }
  /// Over all rows of the tile. is_first: of this block's tiles in a step.
  template <int kLayer>
  MACHINE_DEVICE void add_weight_gradients(const Value* inputs, bool is_first) {
    constexpr int kPieces = pieces_of_warp(P, kLayer);
    if (!has_sums<kLayer>()) return;
    if constexpr (P.sums_in_memory != 0) {
      float sums[1][kPieces][4] = {};
      multiply_gradients<kLayer>(inputs, sums);
      float4* to = stored_sums<kLayer>();
      if (!is_first)
        each_stored<kLayer>([&](int j) {
          const float4 before = __ldcg(to + 32 * j);
          float(&of)[4] = sums[0][j];
          of[0] += before.x, of[1] += before.y, of[2] += before.z, of[3] += before.w;
        });
      each_stored<kLayer>([&](int j) {
        const float(&of)[4] = sums[0][j];
        to[32 * j] = make_float4(of[0], of[1], of[2], of[3]);
      });
    } else {
      constexpr int kFirst = first_piece_of_warp(P, kLayer);
      multiply_gradients<kLayer>(inputs, *reinterpret_cast<float(*)[1][kPieces][4]>(sums_[kFirst]));
    }
  }
  template <int kLayer, int kPieces>
  MACHINE_DEVICE void multiply_gradients(const Value* inputs, float (&sums)[1][kPieces][4]) {
    constexpr int kOut = gradient_stride(P, kLayer), kIn = activation_stride(P, kLayer - 1);
    constexpr int kOnes = P.widths[kLayer - 1];
    const int first = 8 * first_input_piece<kLayer>();
    Product<Format>::template add_gradients<kRowsOfTile>(
        sums, values(kGradients<kLayer>) + kRows * output_piece<kLayer>(), kOut,
        activations<kLayer - 1>(inputs) + first, kIn, lane_, kOnes - first);
  }
  template <int kLayer>
  MACHINE_DEVICE int output_piece() const {
    constexpr int kPieces = output_pieces(P, kLayer);
    return warp_ % kPieces;
  }
  template <int kLayer>
  MACHINE_DEVICE int first_input_piece() const {
    constexpr int kPieces = output_pieces(P, kLayer), kOfWarp = pieces_of_warp(P, kLayer);
    return warp_ / kPieces * kOfWarp;
  }
  template <int kLayer>
  MACHINE_DEVICE bool has_sums() const {
    constexpr int kPieces = input_pieces(P, kLayer);
    return first_input_piece<kLayer>() < kPieces;
  }

  // ---- the end of a step

  /// Where this lane's four sums of the warp's first piece of a layer go; those of the next lie 32 further.
  template <int kLayer>
  MACHINE_DEVICE float4* stored_sums() const {
    constexpr int kAll = input_pieces(P, kLayer), kFirst = first_piece(P, kLayer);
    return reinterpret_cast<float4*>(a_.partials) + std::int64_t{block_} * kSumFours +
           32 * (kFirst + output_piece<kLayer>() * kAll + first_input_piece<kLayer>()) + lane_;
  }
  /// take(j) for the pieces that this warp has of a layer.
  template <int kLayer, class Take>
  MACHINE_DEVICE void each_stored(const Take& take) {
    constexpr int kAll = input_pieces(P, kLayer), kPieces = pieces_of_warp(P, kLayer);
#pragma unroll
    for (int j = 0; j < kPieces; ++j)
      if (!is_behind<kColumns * kAll, kPieces>(first_input_piece<kLayer>() + j)) take(j);
  }
  template <int kLayer = 1>
  MACHINE_DEVICE void store_sums_of() {
    if constexpr (kLayer <= P.layers) {
      constexpr int kFirst = first_piece_of_warp(P, kLayer);
      if (has_sums<kLayer>()) {
        float4* to = stored_sums<kLayer>();
        each_stored<kLayer>([&](int j) {
          const float(&of)[4] = sums_[kFirst + j];
          to[32 * j] = make_float4(of[0], of[1], of[2], of[3]);
        });
      }
      store_sums_of<kLayer + 1>();
    }
  }
  MACHINE_DEVICE void store_sums() {
    if constexpr (P.sums_in_memory == 0) store_sums_of();
    float loss = loss_;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) loss += machine::shuffle_xor(loss, distance);
    if (lane_ == 0) floats(kAt.losses)[warp_] = loss;
    machine::block_sync();
    if (thread_ != 0) return;
    float sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += floats(kAt.losses)[warp];
    a_.block_losses[block_] = sum;
  }

  /// All thread blocks; behind it a thread sees what all have stored. Whether the launch is given up.
  MACHINE_DEVICE bool meet() {
    if constexpr (P.blocks == 1) {
      machine::block_sync();
      return false;
    } else if constexpr (P.is_clustered != 0) {
      machine::cluster_sync();
      return false;
    } else {
      machine::block_sync();
      bool gives_up = false;
      if (warp_ == 0) {
        if (lane_ == 0) machine::add_release_gpu(a_.counter, 1);
        const std::uint32_t all = static_cast<std::uint32_t>(P.blocks) * ++meetings_;
        std::uint64_t begin = 0;
        for (std::uint32_t polls = 1; !gives_up; ++polls) {
          const std::uint32_t there = machine::load_acquire_gpu(a_.counter);
          if (machine::warp_all(static_cast<std::int32_t>(there - all) >= 0)) break;
          gives_up = machine::gives_up<machine::GiveUp::kInline>(
              a_, polls, begin, [&] { return static_cast<std::uint32_t>(block_) << 16 | (meetings_ & 0xffff); });
        }
      }
      return machine::block_sync_or(gives_up);
    }
  }

  /// Parameters `first` on of those that this thread trains, kAtOnce of them.
  MACHINE_DEVICE void load_parameters(int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int own = thread_ + (first + i) * kThreads, at = 4 * kOwned * block_ + own;
      if (own >= 4 * kOwned) continue;
      value_[i] = a_.masters[at];
      if constexpr (P.slots > 0) slot_[0][i] = a_.slots[0][at];
      if constexpr (P.slots > 1) slot_[1][i] = a_.slots[1][at];
    }
  }
  MACHINE_DEVICE void add_up_and_update(int step) {
    float4* scratch = reinterpret_cast<float4*>(memory_ + kAt.scratch);  // [part][four]
    const float4* partials = reinterpret_cast<const float4*>(a_.partials) + std::int64_t{kOwned} * block_;
    for (int item = thread_; item < kParts * kOwned; item += kThreads) {
      const int four = item % kOwned, part = item / kOwned;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int of = part; of < P.blocks; of += kParts) {
        const float4 more = __ldcg(partials + std::int64_t{of} * kSumFours + four);
        sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
      }
      scratch[item] = sum;
    }
    const rules::UpdateFactors factors = a_.factors[step];
    machine::block_sync();
#pragma unroll 1
    for (int first = 0; first < kParametersOfThread; first += kAtOnce) {
      if (first > 0) load_parameters(first);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) update(factors, thread_ + (first + i) * kThreads, i);
    }
    if (block_ == 0 && warp_ == kWarps - 1) store_loss(step);
  }
  MACHINE_DEVICE void update(const rules::UpdateFactors& factors, int own, int i) {
    if (own >= 4 * kOwned) return;
    const int place = reinterpret_cast<const int*>(memory_ + kAt.own_places)[own];
    if (place < 0) return;
    float gradient = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) gradient += floats(kAt.scratch)[4 * kOwned * part + own];
    gradient *= a_.inverse_loss_scale;
    const int at = 4 * kOwned * block_ + own;
    if constexpr (P.slots == 0) value_[i] = fmaf(-factors.rate, gradient, value_[i]);
    if constexpr (P.slots == 1) {
      rules::update_with_momentum(factors, gradient, value_[i], slot_[0][i]);
    }
    if constexpr (P.slots == 2) {
      rules::update_adam(factors, gradient, value_[i], slot_[0][i], slot_[1][i]);
      a_.slots[1][at] = slot_[1][i];
    }
    if constexpr (P.slots > 0) a_.slots[0][at] = slot_[0][i];
    a_.masters[at] = value_[i];
    if (place >= kBiases)
      *reinterpret_cast<float*>(a_.image + place) = value_[i];
    else
      *reinterpret_cast<Value*>(a_.image + place) = Format::weight(value_[i]);
  }
  /// By one warp.
  MACHINE_DEVICE void store_loss(int step) {
    float sum = 0;
    for (int block = lane_; block < P.blocks; block += 32) sum += __ldcg(a_.block_losses + block);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += machine::shuffle_xor(sum, distance);
    constexpr float kMeanOf =
        kLoss == Loss::kCrossEntropy ? float(P.batch) : float(P.batch) * float(kOutputs);
    if (lane_ == 0) a_.losses[(a_.first_step + step) % a_.loss_slots] = sum / kMeanOf;
  }
};

template <class Network>
__global__ void __launch_bounds__(threads(Network::kPlan), 1)
    narrow_kernel(const __grid_constant__ Arguments arguments) {
  Step<Network>(arguments).run();
}

}  // namespace headroom::narrow
