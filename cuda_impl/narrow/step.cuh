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
#include "machine/remote.cuh"
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
  static constexpr bool kIsLocal = is_local(P), kKeepsOwn = P.sums_in_memory == 0;
  static constexpr int kSumWarps = sum_warps(P), kRowsOfPart = kRowsOfTile / P.row_parts, kSets = sum_sets(P);

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
  float loss_ = 0;  ///< of this lane's rows
  std::uint32_t meetings_ = 0;
#ifdef NARROW_TRACE
  int marks_ = 0;
#endif

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
    const std::int64_t first_slot = a_.first_step % a_.loss_slots;
    fetch_samples(batch, block_, 0);
    fetch_image();
    for (int step = 0; step < steps; ++step) {
      trace(true);
      if (thread_ < 2)  // two halves; they are there when the first tile's samples are
        machine::copy_async16(memory_ + kAt.factors + 16 * thread_,
                              reinterpret_cast<const unsigned char*>(a_.factors + step) + 16 * thread_);
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
      trace();
      if (meet()) return;
      trace();
      add_up_and_update();
      if (block_ == 0 && warp_ == kWarps - 1)
        store_loss(first_slot + step < a_.loss_slots ? first_slot + step : first_slot + step - a_.loss_slots);
      trace();
      if (meet()) return;
      trace();
      if (P.blocks > 1 && step + 1 < steps) fetch_image();
      batch = next_batch;
    }
    finish();
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

  /// All shared memory but what copies bring; padding stays as it is here. And what is known of the own parameters.
  MACHINE_DEVICE void clear() {
    for (int at = kAt.kept_begin + 16 * thread_; at < kAt.end; at += 16 * kThreads)
      *reinterpret_cast<uint4*>(memory_ + at) = make_uint4(0, 0, 0, 0);
    machine::block_sync();
    write_ones<1>();
    int* places = reinterpret_cast<int*>(memory_ + kAt.own_places);
    for (int i = thread_; i < 4 * kOwned; i += kThreads) {
      places[i] = a_.places[4 * kOwned * block_ + i];
      if constexpr (kKeepsOwn) {
        own<0>()[i] = in_memory<0>()[i];
        if constexpr (P.slots > 0) own<1>()[i] = in_memory<1>()[i];
        if constexpr (P.slots > 1) own<2>()[i] = in_memory<2>()[i];
      }
    }
  }
  /// Behind the last step: everything to device memory that is not there.
  MACHINE_DEVICE void finish() {
    if constexpr (kKeepsOwn)
      for (int i = thread_; i < 4 * kOwned; i += kThreads) {
        in_memory<0>()[i] = own<0>()[i];
        if constexpr (P.slots > 0) in_memory<1>()[i] = own<1>()[i];
        if constexpr (P.slots > 1) in_memory<2>()[i] = own<2>()[i];
      }
    if constexpr (P.blocks == 1)
      for (int at = 16 * thread_; at < kImageBytes; at += 16 * kThreads)
        *reinterpret_cast<uint4*>(a_.image + at) = *reinterpret_cast<const uint4*>(memory_ + at);
  }
  /// This block's parameters (0) or a slot of them, in device memory; and where they are meanwhile.
  template <int kWhich>
  MACHINE_DEVICE float* in_memory() const {
    return (kWhich == 0 ? a_.masters : a_.slots[kWhich == 0 ? 0 : kWhich - 1]) + 4 * kOwned * block_;
  }
  template <int kWhich>
  MACHINE_DEVICE float* own() const {
    constexpr int kPlace = kWhich == 0 ? kAt.own_values : kAt.own_slots[kWhich == 0 ? 0 : kWhich - 1];
    return kKeepsOwn ? floats(kPlace) : in_memory<kWhich>();
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
        sums, values(kGradients<kLayer>) + strip_row() * kOut, kOut, values(kWeightsBegin) + 8 * first,
        kWeights, lane_);
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
  /// Over the rows of this warp's part. is_first: of this block's tiles in a step.
  template <int kLayer>
  MACHINE_DEVICE void add_weight_gradients(const Value* inputs, bool is_first) {
    constexpr int kOutputs = output_pieces_of_warp(P, kLayer), kInputs = input_pieces_of_warp(P, kLayer);
    if (!has_sums<kLayer>()) return;
    if constexpr (P.sums_in_memory != 0) {
      float sums[kOutputs][kInputs][4] = {};
      multiply_gradients<kLayer>(inputs, sums);
      if (!is_first)
        each_stored<kLayer>([&](int i, int j, float4* to) {
          const float4 before = kIsLocal ? *to : __ldcg(to);
          float (&of)[4] = sums[i][j];
          of[0] += before.x, of[1] += before.y, of[2] += before.z, of[3] += before.w;
        });
      each_stored<kLayer>([&](int i, int j, float4* to) {
        const float (&of)[4] = sums[i][j];
        *to = make_float4(of[0], of[1], of[2], of[3]);
      });
    } else {
      constexpr int kFirst = first_piece_of_warp(P, kLayer);
      multiply_gradients<kLayer>(inputs, *reinterpret_cast<float (*)[kOutputs][kInputs][4]>(sums_[kFirst]));
    }
  }
  template <int kLayer, int kOutputPieces, int kInputPieces>
  MACHINE_DEVICE void multiply_gradients(const Value* inputs, float (&sums)[kOutputPieces][kInputPieces][4]) {
    constexpr int kOut = gradient_stride(P, kLayer), kIn = activation_stride(P, kLayer - 1);
    constexpr int kOnes = P.widths[kLayer - 1];
    const int first = 8 * first_input<kLayer>(), row = warp_ / kSumWarps * kRowsOfPart;
    Product<Format>::template add_gradients<kRowsOfPart>(
        sums, values(kGradients<kLayer>) + row * kOut + kRows * first_output<kLayer>(), kOut,
        activations<kLayer - 1>(inputs) + row * kIn + first, kIn, lane_, kOnes - first);
  }
  /// The first of this warp's pieces, and whether it has any.
  template <int kLayer>
  MACHINE_DEVICE int first_output() const {
    constexpr int kGroups = output_groups(P, kLayer), kOfWarp = output_pieces_of_warp(P, kLayer);
    return warp_ % kSumWarps % kGroups * kOfWarp;
  }
  template <int kLayer>
  MACHINE_DEVICE int first_input() const {
    constexpr int kGroups = output_groups(P, kLayer), kOfWarp = input_pieces_of_warp(P, kLayer);
    return warp_ % kSumWarps / kGroups * kOfWarp;
  }
  template <int kLayer>
  MACHINE_DEVICE bool has_sums() const {
    constexpr int kPieces = input_pieces(P, kLayer);
    return first_input<kLayer>() < kPieces;
  }

  // ---- the end of a step

  /// Sums of this block: of one part of the rows behind the other.
  MACHINE_DEVICE float4* stored_sums() const {
    if constexpr (kIsLocal) return reinterpret_cast<float4*>(memory_ + kAt.partials);
    return reinterpret_cast<float4*>(a_.partials) + std::int64_t{block_} * (P.row_parts * kSumFours);
  }
  /// take(i, j, where this lane's four sums go) for the pieces that this warp has of a layer.
  template <int kLayer, class Take>
  MACHINE_DEVICE void each_stored(const Take& take) {
    constexpr int kAll = input_pieces(P, kLayer), kInputs = input_pieces_of_warp(P, kLayer),
                  kFirst = first_piece(P, kLayer), kOutputPieces = output_pieces_of_warp(P, kLayer),
                  kAllOutputs = output_pieces(P, kLayer);
    const int output = first_output<kLayer>(), input = first_input<kLayer>();
    float4* to =
        stored_sums() + warp_ / kSumWarps * kSumFours + 32 * (kFirst + output * kAll + input) + lane_;
#pragma unroll
    for (int i = 0; i < kOutputPieces; ++i)
#pragma unroll
      for (int j = 0; j < kInputs; ++j) {
        if (kAllOutputs % kOutputPieces != 0 && output + i >= kAllOutputs) continue;
        if (is_behind<kColumns * kAll, kInputs>(input + j)) continue;
        take(i, j, to + 32 * (i * kAll + j));
      }
  }
  template <int kLayer = 1>
  MACHINE_DEVICE void store_sums_of() {
    if constexpr (kLayer <= P.layers) {
      constexpr int kFirst = first_piece_of_warp(P, kLayer), kInputs = input_pieces_of_warp(P, kLayer);
      if (has_sums<kLayer>())
        each_stored<kLayer>([&](int i, int j, float4* to) {
          const float (&of)[4] = sums_[kFirst + i * kInputs + j];
          *to = make_float4(of[0], of[1], of[2], of[3]);
        });
      store_sums_of<kLayer + 1>();
    }
  }
  MACHINE_DEVICE void store_sums() {
    if constexpr (P.sums_in_memory == 0) store_sums_of();
    float loss = loss_;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) loss += machine::shuffle_xor(loss, distance);
    if (lane_ == 0) floats(kAt.losses)[warp_] = loss;
    if constexpr (!kIsLocal) {
      machine::block_sync();
      if (thread_ != 0) return;
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) sum += floats(kAt.losses)[warp];
      a_.block_losses[block_] = sum;
    }
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
          gives_up = machine::gives_up<machine::GiveUp::kInline>(a_, polls, begin, [&] {
            return static_cast<std::uint32_t>(block_) << 16 | (meetings_ & 0xffff);
          });
        }
      }
      return machine::block_sync_or(gives_up);
    }
  }

  /// Four floats of what block `block` has at `place` of its shared memory.
  MACHINE_DEVICE float4 floats_of(int block, int place) const {
    if constexpr (P.blocks == 1) return *reinterpret_cast<const float4*>(memory_ + place);
    const std::uint32_t address = machine::shared_address(memory_ + place);
    return machine::load_remote_floats(machine::remote_address(address, static_cast<std::uint32_t>(block)));
  }
  MACHINE_DEVICE float4 sums_of(int set, int four) const {
    if constexpr (kIsLocal)
      return floats_of(set / P.row_parts, kAt.partials + 16 * (set % P.row_parts * kSumFours + four));
    return __ldcg(reinterpret_cast<const float4*>(a_.partials) + std::int64_t{set} * kSumFours + four);
  }
  MACHINE_DEVICE void add_up_and_update() {
    float4* scratch = reinterpret_cast<float4*>(memory_ + kAt.scratch);  // [part][four]
    constexpr int kLoads = divide_up(kSets, kParts), kUnrolled = kLoads <= 16 ? kLoads : 8;
    for (int item = thread_; item < kParts * kOwned; item += kThreads) {
      const int four = item % kOwned, part = item / kOwned;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll kUnrolled
      for (int i = 0; i < kLoads; ++i) {
        const int set = part + i * kParts;
        if (kSets % kParts != 0 && set >= kSets) continue;
        const float4 more = sums_of(set, kOwned * block_ + four);
        sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
      }
      scratch[item] = sum;
    }
    machine::block_sync();
    const rules::UpdateFactors factors =
        *reinterpret_cast<const rules::UpdateFactors*>(memory_ + kAt.factors);
#pragma unroll 1
    for (int first = 0; first < kParametersOfThread; first += kAtOnce)
      update(factors, thread_ + first * kThreads);
  }
  /// The own parameters `first`, `first` + kThreads and so on, kAtOnce of them.
  MACHINE_DEVICE void update(const rules::UpdateFactors& factors, int first) {
    int place[kAtOnce];
    float value[kAtOnce], gradient[kAtOnce], slot[2][kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kThreads;
      place[i] = -1;
      if (at >= 4 * kOwned) continue;
      place[i] = reinterpret_cast<const int*>(memory_ + kAt.own_places)[at];
      value[i] = own<0>()[at];
      if constexpr (P.slots > 0) slot[0][i] = own<1>()[at];
      if constexpr (P.slots > 1) slot[1][i] = own<2>()[at];
      gradient[i] = 0;
#pragma unroll
      for (int part = 0; part < kParts; ++part) gradient[i] += floats(kAt.scratch)[4 * kOwned * part + at];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (place[i] < 0) continue;
      gradient[i] *= a_.inverse_loss_scale;
      if constexpr (P.slots == 0) value[i] = fmaf(-factors.rate, gradient[i], value[i]);
      if constexpr (P.slots == 1) rules::update_with_momentum(factors, gradient[i], value[i], slot[0][i]);
      if constexpr (P.slots == 2) rules::update_adam(factors, gradient[i], value[i], slot[0][i], slot[1][i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kThreads;
      if (place[i] < 0) continue;
      own<0>()[at] = value[i];
      if constexpr (P.slots > 0) own<1>()[at] = slot[0][i];
      if constexpr (P.slots > 1) own<2>()[at] = slot[1][i];
      if (place[i] >= kBiases)
        hand_out(place[i], value[i]);
      else
        hand_out(place[i], Format::weight(value[i]));
    }
  }
  /// A new weight or bias. The other blocks fetch it: stored into their shared memory, value by value, it takes longer.
  template <class Kind>
  MACHINE_DEVICE void hand_out(int place, Kind value) {
    *reinterpret_cast<Kind*>((P.blocks == 1 ? memory_ : a_.image) + place) = value;
  }
  /// By one warp.
  MACHINE_DEVICE void store_loss(std::int64_t slot) {
    float sum = 0;
    if constexpr (!kIsLocal) {
      for (int block = lane_; block < P.blocks; block += 32) sum += __ldcg(a_.block_losses + block);
    } else {
      // Four warps' at a time; of warps that there are not they are 0.
      for (int i = lane_; i < P.blocks * (kMaxWarps / 4); i += 32) {
        const float4 of = floats_of(i / (kMaxWarps / 4), kAt.losses + 16 * (i % (kMaxWarps / 4)));
        sum += (of.x + of.y) + (of.z + of.w);
      }
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += machine::shuffle_xor(sum, distance);
    constexpr float kMeanOf =
        kLoss == Loss::kCrossEntropy ? float(P.batch) : float(P.batch) * float(kOutputs);
    if (lane_ == 0) a_.losses[slot] = sum / kMeanOf;
  }
};

template <class Network>
__global__ void __launch_bounds__(threads(Network::kPlan), 1)
    narrow_kernel(const __grid_constant__ Arguments arguments) {
  Step<Network>(arguments).run();
}

}  // namespace headroom::narrow
