// The column kernel: networks of two to eight layers with up to 256 hidden columns, in 16 bits, in clusters that hold all hidden
// layers. It is compiled for the network at hand; its layers are loops that the compiler unrolls.
//
// A member owns 16 columns of every hidden layer: it makes them, forward and backward, and holds the masters of the weights that start
// from them, [16 own columns, outputs]. These are what its part of the input gradient needs. The rows that a product forward needs belong to
// the others, who hand them on when they have updated them: 512 bytes from each member to each, over a whole step. So every master is
// updated in one place of a cluster, from the member's own activations and everybody's gradients, and nobody keeps everybody's activations
// but those below the last layer. That is what lets a cluster hold more than four layers.
//
//   step, with W(l) the weights into layer l, h(l) its activations, d(l) its gradient, L hidden layers:
//     four warps, the chain, each with 8 rows of each half          eight warps, that own masters
//     h(1) = relu(x W(1)' + b(1))                                   W(2) -= d(2)' h(1) of the step before; rows handed on
//     h(l) = relu(h(l-1) W(l)' + b(l)), l = 2 .. L
//     logits, loss, d(L) for all columns: no exchange               W(L+1), then W(L) -= d(L)' h(L-1); rows handed on
//     d(l) = mask(d(l+1) W(l+1)), l = L-1 .. 1                      W(l) -= d(l)' h(l-1) when d(l) is there, l = L-1 .. 3
//     x is in registers                                             W(1) -= d(1)' x
//   A last warp has biases, inputs and the loss.
//   With one or two hidden layers W(L+1) is updated behind barrier 1, too: else the end of the step would wait for it.
//
//   halves:    of the batch, 32 rows each, the last partly filled: one, or two with batches over 32. A warp of the chain loads weights
//              once and has its group of 8 rows of one half after the other; updates sum over both at once. Rows beyond the batch
//              have inputs, labels and gradients of nothing.
//   tiles:     [rows, all columns] as [groups of 8 rows] [slices of 8 columns] blocks [8 columns] [8 rows]
//   weights:   of every 16 columns of the other layer four blocks of 8 x 8, as they lie in the masters. Rows are the same blocks,
//              read transposed. A bf16 master is a rounded weight, which lies there, and the 16 bits that rounding left out.
//   slots:     of the optimizer (momentum, Adam), fp32, in the order of the masters that they belong to: each belongs to one thread,
//              which alone reads and writes it. In shared memory, or in device memory where that is full.
//   slopes:    of ReLU, tanh and ELU follow from the outputs, of SiLU and GELU from sums that are kept in 16 bits: a member's own, and
//              of h(L), whose gradient everybody makes, everybody's. These travel beside h(L), and are counted by its barrier.
//   clusters:  four, with slots eight of 8 members, if there are more inputs than one has room for: they divide the inputs, and each does
//              all the rest alike. Their parts of the first layer's sums go through the L2 (slice_cluster_sum.cuh).
//   ranks:     GPUs that train together, each with its own rows of a batch (column_peers.cuh). The chain also sends peers what it makes,
//              and updates sum over peers' rows besides. A step of theirs ends with a wait for peers' d(1). W(2) is updated before it;
//              W(3), and then W(L+1), behind barrier 1, when peers' part has long been there. Four warps have the biases.
//   barriers:  of all warps that have work, in a step: 1. the first layer is updated, 2. its gradient is complete
//   between warps (mbarriers):
//              taken(l)  by the chain: d(l) is there, weights W(l) as columns are in registers; l = L: what the loss leaves is there
//              read(l)   by the eight: d(l) is in registers
//              last      by the eight, with one or two hidden layers or ranks: 1. h(L) is in registers, 2. W(L+1) is updated
//
// What protects what is written again. A warp of the chain publishes a group's tiles only after it has taken those before from everybody,
// and only warps of that group write them:
//   h(l), l < L    two buffers in turn: who writes h(l + 2) has taken an h(l + 1) published behind the taking of h(l); h(1) of the next
//                  step is written behind the end of this one, when everybody has taken all.
//   h(L)           read by the eight, too: before barrier 1 of the next step (with one or two hidden layers: before `last`, which the
//                  chain awaits before it publishes h(1), with ranks and three or more h(L - 1)). Its writers have taken an h(L - 1) published behind that. With one hidden layer
//                  there is none: two buffers, whose writers have taken the h(1) of the step between.
//                  d(L) and what follows it in its buffer lie in that of h(2) with two halves and three hidden layers or more: the chain
//                  has taken what was there; and who writes the next h(2) has taken an h(1) of this member, published behind
//                  barrier 1, for l = 2 behind the wait for read(2), too.
//   d(l)           three buffers in turn, from d(L), which each member makes for itself, to d(2). d(l - 3) is written by who has taken
//                  a d(l - 2) published behind the wait for read(l). In the next step d(L) and what follows are written by who has taken
//                  an h(L) published behind the wait for read(2), of ranks read(3); that of the others was before barrier 1.
//   rows of W(l)   are handed on behind d(l) (l = L: behind the taking of h(L)), which everybody published after h(l), for which it had
//                  read them. Of l = 2 one step later, of ranks those of l = 3.
//   columns of W(l)  behind taken(l). The member's own activations and all that the loss leaves: behind barrier 1; of h(1) two buffers,
//                  since W(2) is updated behind it. h(2) of ranks: behind read(3). Of ranks the columns of W(3) are updated before `last`.
#pragma once

#include <type_traits>

#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/compiler.cuh"
#include "machine/copy.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/column_peers.cuh"
#include "resident/mean_loss.cuh"
#include "resident/slice_cluster_sum.cuh"
#include "rules/loss.cuh"
#include "rules/optimizer.cuh"
#include "rules/rounded_activation.cuh"

namespace headroom::resident {

using namespace machine;

/// Masters of a matrix that one lane has: `kSlices` times (row g, columns 2t and 2t + 1; row g + 8, the same).
using ColumnMaster = float[4];

/// fp32 masters, in registers or in shared memory.
template <int kSlices>
struct RegisterMasters {
  ColumnMaster (&master)[kSlices];
  MACHINE_DEVICE void load(int i, ColumnMaster& to) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) to[c] = master[i][c];
  }
  MACHINE_DEVICE void store(int i, const ColumnMaster& from) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) master[i][c] = from[c];
  }
};
struct SharedMasters {
  float4* master;  // of this lane, slice by slice
  MACHINE_DEVICE void load(int i, ColumnMaster& to) const {
    const float4 four = master[i * 32];
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
  MACHINE_DEVICE void store(int i, const ColumnMaster& from) const {
    master[i * 32] = make_float4(from[0], from[1], from[2], from[3]);
  }
};

/// A bf16 weight, rounded to nearest with ties away from zero, and the lower 16 bits of its master: together the master. Two of each
/// in a word. A NaN stays one.
struct SplitMaster {
  MACHINE_DEVICE static void join(std::uint32_t high, std::uint32_t low, float& first, float& second) {
    const std::uint32_t cut =
        high - (low >> 15 & 0x00010001u);  // not rounded up; no half is zero where this takes one
    first = bits_to_float(choose_bytes(low, cut, 0x5410));
    second = bits_to_float(choose_bytes(low, cut, 0x7632));
  }
  MACHINE_DEVICE static std::uint32_t low(float first, float second) {
    return choose_bytes(float_to_bits(first), float_to_bits(second), 0x5410);
  }
};

template <class Format, ColumnShape kShape, int kRanks = 1>
class ColumnStep {
  static constexpr bool kSplit = Format::kPrecision == Precision::kBf16;
  using Places = ColumnPlaces<kShape, kSplit>;
  static constexpr int kHidden = kShape.hidden, kMembers = kShape.members, kClusters = kShape.clusters,
                       kHalves = kShape.halves, kGroups = kShape.groups();

 public:
  using Arguments = std::conditional_t<kRanks == 1, ColumnArguments, RankArguments>;
  static constexpr int kChainWarps = kColumnGroups, kThreadCount = kColumnThreads;

  MACHINE_DEVICE explicit ColumnStep(const Arguments& a)
      : warp_(uniform(thread_index() / 32)),
        lane_(thread_index() % 32),
        member_(static_cast<int>(block_index() % kMembers)),
        input_begin_(part_begin(input_count(), kWarps, warp_)),
        input_pairs_(part_begin(input_count(), kWarps, warp_ + 1) - input_begin_),
        waiter_{warp_, lane_, block_index()},
        peers_(a),
        next_batch_(static_cast<int>(a.first_step % a.batches)) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    clear();
    if (warp_ < kWarps) {
      load(a);
      keep_first_weights<kInputs>();
    }
    begin_barriers();  // nobody sends before
    if (warp_ < kWarps)
      update(a);
    else if (warp_ < kWarps + kChainWarps)
      chain(a);
    else
      serve(a);
    block_sync();
    cluster_sync();  // nobody may leave while others still store into its memory
  }

 private:
  // Ranks divide biases among four warps: each waits for peers.
  static constexpr int kServers = kRanks == 1 ? 1 : kHidden < 3 ? kHidden + 1 : 4;
  static constexpr int kStepBarrier = 1, kStepThreads = kThreads + 32 * (kChainWarps + kServers);
  // In cycles: behind barrier 1 the chain reads the first layer's weights, then those who update may read shared memory.
  static constexpr std::uint32_t kHeadStart = kClusters > 1 ? 200 : 0;
  // A thread block begins with 128 for each of its 16 warps.
  static constexpr int kUpdatingRegisters = kRanks == 1 || kMembers == 16 ? 136 : 152,
                       kChainRegisters = kRanks == 1      ? 208
                                         : kMembers == 16 ? 200
                                                          : 168,
                       kServingRegisters = kRanks == 1 ? 32 : 40;
  static_assert(kRanks == 1 || kHalves == 1);
  static constexpr int kGroupTiles = Places::kTiles / kGroups, kMemberTile = kGroupTiles / kMembers,
                       kBlock = kMemberTile / 2, kHalfTiles = kColumnGroups * kGroupTiles,
                       kHalfPair = Places::kPairBytes / kHalves;
  static constexpr bool kStagesColumns = kShape.stages_columns(), kSharesABuffer = kShape.shares_a_buffer();
  // d(2) lies where h(2) does, which others write as soon as they have this member's h(1).
  static constexpr bool kSecondIsInH2 = kSharesABuffer && (kHidden - 2) % 3 == 0;
  static constexpr int kPairs = kShape.cluster_pairs(), kInputs = (kPairs + kWarps - 1) / kWarps;
  static constexpr int kSlices = 2 * kMembers / kWarps;  // of a matrix's 8 columns that a warp updates
  static constexpr int kLastMatrix = kHidden - 1;        // of W(2) to W(L + 1)
  // W(L + 1) is updated behind barrier 1. Of ranks always: it is not needed before the next loss, and by then peers' part is there.
  static constexpr bool kLastIsLate = kHidden <= 2 || kRanks > 1;
  // So is W(2), whose rows the next step needs at once. Ranks update it before: they have time until their peers' d(1) is there.
  static constexpr bool kSecondIsLate = kRanks == 1;
  // And W(3) of ranks: its wait for peers would stand before that for d(2).
  static constexpr bool kThirdIsLate = kRanks > 1 && kHidden >= 3;
  static constexpr int kSlotCount = kShape.slots, kSharedSlotMatrices = kShape.shared_slot_matrices(),
                       kSlotsOfMatrix = kSlotCount * kShape.matrix_values();
  static constexpr bool kFirstSlotsAreShared = kShape.first_slots_are_shared();
  static constexpr int kSlotStride = kShape.matrix_values() / 16,
                       kFirstSlotStride = kShape.first_values() / 16,
                       kMemorySlots = kShape.memory_slot_bytes() / 16;  // of 16 bytes
  static constexpr int kUpdaters = kThreads, kChainThreads = 32 * kChainWarps;
  static constexpr int kClearedBytes = Places::kSharedBytes + (kRanks == 1 ? 0 : kThreadCount / 32 * 4);
  static constexpr int kBlockBytes = kColumnOwn * kColumnOwn * 2;  // of weights: 16 own columns, 16 others

  static constexpr Activation kActivation = static_cast<Activation>(kShape.activation);
  static constexpr Loss kLoss = static_cast<Loss>(kShape.loss);
  static constexpr bool kIsRelu = kActivation == Activation::kRelu, kKeepsSums = kShape.keeps_sums(),
                        kHasLabels = kLoss == Loss::kCrossEntropy;

  // What ranks tell each other, numbered.
  static constexpr int kOutputsKind = outputs_kind(kHidden);
  MACHINE_DEVICE static constexpr int gradient_kind(int layer) {
    return resident::gradient_kind(kHidden, layer);
  }

  // Exchanges, numbered: h(1) to h(L), d(L - 1) to d(2). Behind them, for tests that lose them, the first layer's sums over clusters,
  // and the rows of W(2) to W(L).
  MACHINE_DEVICE static constexpr int hidden_exchange(int layer) { return layer - 1; }
  MACHINE_DEVICE static constexpr int gradient_exchange(int layer) { return kHidden + (kHidden - 1 - layer); }
  static constexpr int kFirstSum = kShape.exchanges();
  MACHINE_DEVICE static constexpr int rows_exchange(int layer) { return kFirstSum + layer - 1; }

  using Peers = std::conditional_t<kRanks == 1, NoPeers,
                                   PeerExchange<kHidden, kMembers, kGroups, kRanks == 1 ? 2 : kRanks>>;
  static constexpr int kPeers = kRanks == 1 ? 1 : kRanks - 1;  // of arrays
  using Fragments = typename Format::Fragments;
  using Master = ColumnMaster;
  using Factors = rules::UpdateFactors;  // what a step's updates share

  // Pairs of inputs of this cluster. These are worked out where they are used: nobody has a register for them.
  MACHINE_DEVICE static int cluster() { return static_cast<int>(block_index() / kMembers); }
  MACHINE_DEVICE static int input_first() { return part_begin(kShape.input_pairs, kClusters, cluster()); }
  MACHINE_DEVICE static int input_count() {
    return part_begin(kShape.input_pairs, kClusters, cluster() + 1) - input_first();
  }

  MACHINE_DEVICE static void step_sync() { named_barrier<kStepThreads>(kStepBarrier); }
  MACHINE_DEVICE void begin_step(int step) {
    stage_ = step & 1;
    parity_ = static_cast<std::uint32_t>(step) & 1;
    paired_parity_ = static_cast<std::uint32_t>(step >> 1) & 1;
    cluster_sum_.begin_step(step);
    peers_.begin_step(step);
  }
  /// Which of the pieces of `batch` rows that the data is cut into: of a batch, a rank's.
  MACHINE_DEVICE static std::int64_t rows_of(int batch, int rank) {
    return std::int64_t{batch} * kRanks + rank;
  }
  MACHINE_DEVICE static std::int64_t own_rows(const Arguments& a, int batch) {
    if constexpr (kRanks > 1) return rows_of(batch, a.rank);
    return batch;
  }
  MACHINE_DEVICE void next_batch(const Arguments& a) {
    batch_ = next_batch_;
    next_batch_ = batch_ + 1 == static_cast<int>(a.batches) ? 0 : batch_ + 1;
  }

  // ---- places

  MACHINE_DEVICE static unsigned char* at(int byte) { return shared_memory() + byte; }
  /// Of h(layer); with one hidden layer of this step or the one before.
  MACHINE_DEVICE unsigned char* hidden_tiles(int layer, bool before = false) const {
    if (layer < kHidden) return at(Places::kLower + (layer - 1) % 2 * Places::kTiles);
    return at(Places::kLast + (kHidden == 1 ? (before ? stage_ ^ 1 : stage_) * Places::kTiles : 0));
  }
  MACHINE_DEVICE static unsigned char* gradient_tiles(int layer) {
    const int buffer = (kHidden - layer) % 3;
    if constexpr (kSharesABuffer)
      return at(buffer == 0 ? Places::kLower + Places::kTiles
                            : Places::kGradients + (buffer - 1) * Places::kTiles);
    return at(Places::kGradients + buffer * Places::kTiles);
  }
  /// Masters' rounded weights: of W(matrix + 2) as columns, or of the last layer.
  MACHINE_DEVICE static unsigned char* columns(int matrix) {
    return at(Places::kColumns + matrix * Places::kMatrix);
  }
  /// W(layer) as others hand it on, blocks to be read transposed.
  MACHINE_DEVICE static unsigned char* rows(int layer) {
    return at(Places::kRows + (layer - 2) * Places::kMatrix);
  }
  /// This member's columns of h(layer), [groups] [2 slices] blocks.
  MACHINE_DEVICE unsigned char* own_hidden(int layer, bool before = false) const {
    return at(Places::kOwnHidden + (layer == 1 ? (before ? stage_ ^ 1 : stage_) : layer) * Places::kOwnTile);
  }
  /// The same of its sums, where the way back takes them; everybody's of h(L).
  MACHINE_DEVICE static unsigned char* own_sums(int layer) {
    return at(Places::kOwnSums + (layer - 1) * Places::kOwnTile);
  }
  MACHINE_DEVICE static unsigned char* last_sums() { return at(Places::kLastSums); }
  MACHINE_DEVICE static unsigned char* first_gradient() { return at(Places::kFirstGradient); }
  MACHINE_DEVICE static unsigned char* dlogits() { return at(Places::kDlogits); }
  /// Of W(layer); 1 or 2: a slot of it.
  MACHINE_DEVICE static float* bias(int layer, int which = 0) {
    return reinterpret_cast<float*>(at(Places::kBiases)) + kColumnOwn * (which * (kHidden + 1) + layer - 1);
  }
  static constexpr int kTimedOutWords = kRanks == 1 ? kChainWarps : kThreadCount / 32;
  MACHINE_DEVICE static std::uint32_t* timed_out_words() {
    return reinterpret_cast<std::uint32_t*>(at(kRanks == 1 ? Places::kTimedOut : Places::kSharedBytes));
  }
  /// Before the last barrier of a step, by warps other than the chain's, which wait for nobody but peers.
  MACHINE_DEVICE void say_timed_out() const {
    if (kRanks > 1 && waiter_.timed_out && lane_ == 0) timed_out_words()[warp_] = 1;
  }
  /// Behind the last barrier of a step, one for each of the first lanes; written before it.
  MACHINE_DEVICE std::uint32_t timed_out_word() const {
    return lane_ < kTimedOutWords ? timed_out_words()[lane_] : 0;
  }
  /// [pairs of this cluster's inputs]; of those that there are not they stay zero.
  MACHINE_DEVICE static unsigned char* first_weights() { return at(Places::kFirstWeights); }
  MACHINE_DEVICE static std::uint32_t barrier(int which) {
    return shared_address(shared_memory()) + static_cast<std::uint32_t>(Places::kBarriers + 8 * which);
  }
  MACHINE_DEVICE std::uint32_t exchange_barrier(int exchange, int group) const {
    return barrier((kHidden == 1 ? stage_ : exchange) * kGroups + group);
  }
  MACHINE_DEVICE static std::uint32_t rows_barrier(int layer) {
    return barrier(Places::kRowsBarriers + layer - 2);
  }
  MACHINE_DEVICE static std::uint32_t staging_barrier(int which) {
    return barrier(Places::kStagingBarriers + which);
  }
  MACHINE_DEVICE static std::uint32_t taken_barrier(int layer) {
    return barrier(Places::kTakenBarriers + layer - 1);
  }
  MACHINE_DEVICE static std::uint32_t read_barrier(int layer) {
    return barrier(Places::kReadBarriers + layer - 1);
  }
  enum LastSignal { kLastRead, kLastUpdated };
  MACHINE_DEVICE static std::uint32_t last_barrier(LastSignal what) {
    return barrier(Places::kLastBarriers + what);
  }

  // ---- begin

  MACHINE_DEVICE static void clear() {
#pragma unroll 1
    for (int byte = thread_index() * 16; byte < kClearedBytes; byte += kThreadCount * 16)
      *reinterpret_cast<uint4*>(at(byte)) = make_uint4(0, 0, 0, 0);
    block_sync();
  }
  /// After shared memory was cleared and before anybody publishes.
  MACHINE_DEVICE static void begin_barriers() {
    if (thread_index() == 0) {
#pragma unroll 1
      for (int i = 0; i < Places::kBarrierCount; ++i)
        barrier_init(barrier(i), i < Places::kTakenBarriers  ? 1
                                 : i < Places::kReadBarriers ? kChainThreads
                                                             : kUpdaters);
      barrier_init_fence();
#pragma unroll 1
      for (int i = 0; i < Places::kStagingBarriers; ++i)
        barrier_arrive_expect(barrier(i),
                              i < Places::kRowsBarriers ? exchange_bytes(i / kGroups) : Places::kMatrix);
    }
    block_sync();
    cluster_sync();
  }
  /// By whom these are announced waits for nothing that has no bound.
  MACHINE_DEVICE static void await_own(std::uint32_t barrier, std::uint32_t parity) {
    while (!warp_all(barrier_try_wait(barrier, parity))) {
    }
  }

  // ---- eight warps that own masters

  /// [16 own columns, all rows]
  struct Own {
    std::uint32_t word[2 * kHalves][4];
  };

  MACHINE_DEVICE void update(const Arguments& a) {
    registers_increase<kUpdatingRegisters>();
#pragma unroll
    for (int layer = kSecondIsLate ? 3 : 2; layer <= kHidden; ++layer)
      if (layer != 3 || !kThirdIsLate) hand_on(a, layer);
#pragma unroll 1
    for (int step = 0; step < a.steps; ++step) {
      begin_step(step);
      if constexpr (!kStagesColumns || kRanks > 1) next_batch(a);
      step_sync();  // 1
      // In the first step of tiles that are zero.
      wait_cycles(kHeadStart);
      update_late<true>(a, step > 0);
      await_own(taken_barrier(kHidden), parity_);
      const bool goes_on = step + 1 < a.steps;
      const Factors factors = factors_of_step(a);
      if constexpr (!kLastIsLate)
        update_matrix<kLastMatrix>(a, factors, load_operands(hidden_tiles(kHidden), load_own(dlogits())));
      if constexpr (!kLastIsLate || !kSecondIsLate) update_between<kHidden>(a, factors, goes_on);
      if constexpr (kStagesColumns) await_own(staging_barrier(1), parity_);
      Inputs x;
      load_input_columns(a, x);
      say_timed_out();
      step_sync();  // 2
      const std::uint32_t timed_out = timed_out_word();
      update_first(a, factors, x);
      if (warp_any(timed_out != 0)) return;
    }
    begin_step(a.steps);
    update_late<false>(a, true);
    step_sync();  // biases are updated, too
    store(a);
  }
  /// Of the step before, if the launch has one.
  template <bool kGoesOn>
  MACHINE_DEVICE void update_late(const Arguments& a, bool has_step_before) {
    // Without slots a gradient of zero changes nothing; but of a step before the launch peers' are still there.
    const bool updates = (kSlotCount == 0 && kRanks == 1) || has_step_before;
    const Factors factors = factors_of_step(a, true);
    if constexpr (kLastIsLate) {
      if constexpr (kThirdIsLate) {
        const Operands third = load_operands(gradient_tiles(3), load_own(own_hidden(2)));
        if (kGoesOn) barrier_arrive(read_barrier(3));
        if (updates) update_matrix<1, true>(a, factors, third);
        if (kGoesOn) hand_on(a, 3);
      }
      const Operands last = load_operands(hidden_tiles(kHidden, true), load_own(dlogits()));
      if (kGoesOn) barrier_arrive(last_barrier(kLastRead));
      if constexpr (kHidden == 2 && kSecondIsLate) update_second<kGoesOn>(a, factors, updates);
      if (updates) update_matrix<kLastMatrix, true>(a, factors, last);
      if (kGoesOn) barrier_arrive(last_barrier(kLastUpdated));
    } else if constexpr (kSecondIsLate) {
      update_second<kGoesOn>(a, factors, updates);
    }
  }
  template <bool kGoesOn>
  MACHINE_DEVICE void update_second(const Arguments& a, const Factors& factors, bool updates) {
    const Operands second = load_operands(gradient_tiles(2), load_own(own_hidden(1, true)));
    if (kGoesOn) barrier_arrive(read_barrier(2));
    if (updates) update_matrix<0, true>(a, factors, second);
    if (kGoesOn) hand_on(a, 2);
  }
  /// W(layer) to the lowest that is not updated behind barrier 1, each when its gradient is there.
  template <int kLayer>
  MACHINE_DEVICE void update_between(const Arguments& a, const Factors& factors, bool goes_on) {
    if constexpr (kLayer >= (kSecondIsLate ? 3 : 2)) {
      if constexpr (kLayer != 3 || !kThirdIsLate) {
        if constexpr (kLayer < kHidden) await_own(taken_barrier(kLayer), parity_);
        const Operands operands = load_operands(gradient_tiles(kLayer), load_own(own_hidden(kLayer - 1)));
        barrier_arrive(read_barrier(kLayer));
        update_matrix<kLayer - 2>(a, factors, operands);
        if (goes_on) hand_on(a, kLayer);
      }
      update_between<kLayer - 1>(a, factors, goes_on);
    }
  }
  /// This warp's blocks of W(layer): to the members whose outputs they are of.
  MACHINE_DEVICE void hand_on(const Arguments& a, int layer) const {
    warp_sync();  // a block was written by the whole warp
    if (a.lost_exchange == rows_exchange(layer)) return;
    const std::uint32_t place =
        shared_address(rows(layer)) + static_cast<std::uint32_t>(member_ * kBlockBytes + lane_ * 16);
#pragma unroll
    for (int i = 0; i < kSlices / 2; ++i) {
      const int to = warp_ * (kSlices / 2) + i;
      const uint4 packet = load_shared16(columns(layer - 2) + to * kBlockBytes + lane_ * 16);
      store_async16(remote_address(place, static_cast<std::uint32_t>(to)), packet,
                    remote_address(rows_barrier(layer), static_cast<std::uint32_t>(to)));
    }
  }

  MACHINE_DEVICE static float* step_factors(int stage) {
    return reinterpret_cast<float*>(at(Places::kFactors)) + 2 * stage;
  }
  MACHINE_DEVICE Factors factors_of_step(const Arguments& a, bool before = false) const {
    Factors factors = a.factors;
    if constexpr (kSlotCount == 2) {
      const float* of_step = step_factors(before ? stage_ ^ 1 : stage_);
      factors.rate = of_step[0], factors.inverse_root = of_step[1];
    }
    return factors;
  }
  /// sum: of the gradient times the loss scale. The tensor core does not round to nearest: a master must not pass through its
  /// accumulator.
  MACHINE_DEVICE static void update_parameter(const Arguments& a, const Factors& factors, float sum,
                                              float& master, float& first, float& second) {
    const float gradient = kSplit ? sum : sum * a.inverse_loss_scale;  // bf16 has no loss scale
    if constexpr (kSlotCount == 2)
      rules::update_adam(factors, gradient, master, first, second);
    else if constexpr (kSlotCount == 1)
      rules::update_with_momentum(factors, gradient, master, first);
    else
      master = fmaf(a.update_factor, sum, master);
  }
  /// Slots of the masters that one lane has of a matrix, slice by slice.
  struct Slots {
    float4* place;
    int stride;  // from the first slot's to the second's
    MACHINE_DEVICE float4 load(int slot, int i) const {
      return slot < kSlotCount ? place[slot * stride + i * 32] : make_float4(0, 0, 0, 0);
    }
    MACHINE_DEVICE void store(int slot, int i, const float4& values) const {
      if (slot < kSlotCount) place[slot * stride + i * 32] = values;
    }
  };
  MACHINE_DEVICE static void update_master(const Arguments& a, const Factors& factors, Master& master,
                                           const float (&sum)[4], const Slots& slots, int i, float4 first,
                                           float4 second) {
    update_parameter(a, factors, sum[0], master[0], first.x, second.x);
    update_parameter(a, factors, sum[1], master[1], first.y, second.y);
    update_parameter(a, factors, sum[2], master[2], first.z, second.z);
    update_parameter(a, factors, sum[3], master[3], first.w, second.w);
    slots.store(0, i, first);
    slots.store(1, i, second);
  }
  /// Of a matrix of W(2) to W(L + 1), or of the first layer (kHidden).
  template <int kMatrix>
  MACHINE_DEVICE Slots slots_of(const Arguments& a) const {
    if constexpr (kMatrix == kHidden) {
      const int stride = kFirstSlotStride, own = input_begin_ * 64 + lane_;
      if constexpr (kFirstSlotsAreShared)
        return {reinterpret_cast<float4*>(at(Places::kSlots + kSharedSlotMatrices * kSlotsOfMatrix)) + own,
                stride};
      else
        return {own_slot_memory(a) + (kHidden - kSharedSlotMatrices) * (kSlotsOfMatrix / 16) + own, stride};
    } else {
      const int stride = kSlotStride, own = warp_ * (kSlices * 32) + lane_;
      if constexpr (kMatrix < kSharedSlotMatrices)
        return {reinterpret_cast<float4*>(at(Places::kSlots + kMatrix * kSlotsOfMatrix)) + own, stride};
      else
        return {own_slot_memory(a) + (kMatrix - kSharedSlotMatrices) * (kSlotsOfMatrix / 16) + own, stride};
    }
  }
  MACHINE_DEVICE static float4* own_slot_memory(const Arguments& a) {
    return reinterpret_cast<float4*>(a.slot_memory) + block_index() * kMemorySlots;
  }
  /// Two own slices as the rows of a product, out of blocks of which those of the next 8 rows are group_bytes further.
  MACHINE_DEVICE Own load_own(const unsigned char* blocks, int group_bytes = 2 * kBlock) const {
    const unsigned char* row =
        blocks + (lane_ >> 4) * group_bytes + (lane_ >> 3 & 1) * kBlock + (lane_ & 7) * 16;
    Own own;
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) load_matrices(row + 2 * i * group_bytes, own.word[i]);
    return own;
  }
  /// This member's of everybody's.
  MACHINE_DEVICE Own own_tiles(const unsigned char* tiles) const {
    return load_own(tiles + member_ * kMemberTile, kGroupTiles);
  }
  /// By what 8 columns have of all rows, a word of each group.
  MACHINE_DEVICE static void multiply_own(float (&sum)[4], const Own& own,
                                          const std::uint32_t (&column)[kGroups]) {
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i)
      Format::product(sum, as_uint4(own.word[i]), column[2 * i], column[2 * i + 1]);
  }
  MACHINE_DEVICE static uint4 as_uint4(const std::uint32_t (&word)[4]) {
    return make_uint4(word[0], word[1], word[2], word[3]);
  }
  MACHINE_DEVICE static void copy(float (&to)[4], const float (&from)[4]) {
#pragma unroll
    for (int c = 0; c < 4; ++c) to[c] = from[c];
  }
  /// What an update multiplies: of this warp's slices of `tiles` and of 16 own columns, over all rows.
  struct Operands {
    Own own;
    std::uint32_t columns[kSlices][kGroups];
  };
  MACHINE_DEVICE Operands load_operands(const unsigned char* tiles, const Own& own) const {
    const unsigned char* row =
        tiles + (lane_ >> 3) * kGroupTiles + warp_ * (kSlices * kBlock) + (lane_ & 7) * 16;
    Operands operands = {own, {}};
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        std::uint32_t word[4];
        load_matrices(row + i * kBlock + half * (kColumnGroups * kGroupTiles), word);
#pragma unroll
        for (int j = 0; j < 4; ++j) operands.columns[i][4 * half + j] = word[j];
      }
    return operands;
  }

  // ---- the same of the other ranks' rows

  template <class Words>
  MACHINE_DEVICE static Own own_of(const Words& words) {
    Own own;
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      own.word[i][0] = words.first[2 * i], own.word[i][1] = words.second[2 * i];
      own.word[i][2] = words.first[2 * i + 1], own.word[i][3] = words.second[2 * i + 1];
    }
    return own;
  }
  /// What a peer's rows have for an update of a matrix: where its own columns come from, and its slices.
  template <int kMatrix>
  MACHINE_DEVICE Operands take_operands(const Arguments& a, int peer, bool before) {
    constexpr bool kIsLast = kMatrix == kLastMatrix;
    constexpr int kOwnMembers = kSlices / 2;  // of which this warp updates the columns
    typename Peers::template Words<kGroups> own;
    typename Peers::template Words<kOwnMembers * kGroups> columns;
    peers_.take(a, waiter_, peer, before, kIsLast ? kOutputsKind : hidden_kind(kMatrix + 1),
                kIsLast ? 0 : member_, own, kIsLast ? hidden_kind(kHidden) : gradient_kind(kMatrix + 2),
                warp_ * kOwnMembers, columns);
    Operands operands = {own_of(own), {}};
#pragma unroll
    for (int i = 0; i < kOwnMembers; ++i)
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        operands.columns[2 * i][group] = columns.first[i * kGroups + group];
        operands.columns[2 * i + 1][group] = columns.second[i * kGroups + group];
      }
    return operands;
  }
  /// This member's of a layer's gradient, or everybody's of the outputs.
  MACHINE_DEVICE Own take_own(const Arguments& a, int peer, int kind, int member) {
    typename Peers::template Words<kGroups> words;
    peers_.take(a, waiter_, peer, false, kind, member, words);
    return own_of(words);
  }

  /// Masters of a matrix: visit(slice, master) for this warp's, two slices at a time; whatever it leaves is kept, and weights of it.
  template <int kMatrix, class Visit>
  MACHINE_DEVICE void for_slices(Visit&& visit) {
    unsigned char* place = columns(kMatrix) + warp_ * (kSlices / 2 * kBlockBytes) + lane_ * 16;
#pragma unroll
    for (int i = 0; i < kSlices; i += 2, place += kBlockBytes) {
      Master first, second;
      if constexpr (kSplit) {
        std::uint32_t high[4];
        std::uint32_t (&low)[4] = low_[kMatrix][i / 2];
        load_matrices(place, high);
        SplitMaster::join(high[0], low[0], first[0], first[1]);
        SplitMaster::join(high[1], low[1], first[2], first[3]);
        SplitMaster::join(high[2], low[2], second[0], second[1]);
        SplitMaster::join(high[3], low[3], second[2], second[3]);
        visit(i, first);
        visit(i + 1, second);
        low[0] = SplitMaster::low(first[0], first[1]);
        low[1] = SplitMaster::low(first[2], first[3]);
        low[2] = SplitMaster::low(second[0], second[1]);
        low[3] = SplitMaster::low(second[2], second[3]);
      } else {
        const auto visit_both = [&](const auto& masters) {
          masters.load(i, first);
          masters.load(i + 1, second);
          visit(i, first);
          visit(i + 1, second);
          masters.store(i, first);
          masters.store(i + 1, second);
        };
        if constexpr (kMatrix < kShape.register_masters)
          visit_both(RegisterMasters<kSlices>{masters_[kMatrix]});
        else
          visit_both(SharedMasters{
              reinterpret_cast<float4*>(
                  at(Places::kMasters + (kMatrix - kShape.register_masters) * 2 * Places::kMatrix)) +
              warp_ * (kSlices * 32) + lane_});
      }
      keep_weights(place, first, second);
    }
  }
  /// Masters by the gradient own * columns^T, and what peers have of it. kBefore: of the step before.
  template <int kMatrix, bool kBefore = false>
  MACHINE_DEVICE void update_matrix(const Arguments& a, const Factors& factors, const Operands& operands) {
    float sums[kRanks == 1 ? 1 : kSlices][4] = {};
    if constexpr (kRanks > 1) {
#pragma unroll
      for (int i = 0; i < kSlices; ++i) multiply_own(sums[i], operands.own, operands.columns[i]);
      add_peers<kRanks>(sums, [&](int peer, float (&parts)[kSlices][4]) {
        const Operands of_peer = take_operands<kMatrix>(a, peer, kBefore);
#pragma unroll
        for (int i = 0; i < kSlices; ++i) multiply_own(parts[i], of_peer.own, of_peer.columns[i]);
      });
    }
    const Slots slots = slots_of<kMatrix>(a);
    // All at once: from device memory each is long on its way.
    float4 first[kSlices], second[kSlices];
#pragma unroll
    for (int i = 0; i < kSlices; ++i) first[i] = slots.load(0, i), second[i] = slots.load(1, i);
    for_slices<kMatrix>([&](int i, Master& master) {
      float sum[4] = {};
      if constexpr (kRanks == 1)
        multiply_own(sum, operands.own, operands.columns[i]);
      else
        copy(sum, sums[i]);
      update_master(a, factors, master, sum, slots, i, first[i], second[i]);
    });
  }
  /// Of two neighbouring slices, as the rows of a product.
  MACHINE_DEVICE static void keep_weights(unsigned char* place, const Master& first, const Master& second) {
    const std::uint32_t word[4] = {
        Format::pack_finite_weights(first[0], first[1]), Format::pack_finite_weights(first[2], first[3]),
        Format::pack_finite_weights(second[0], second[1]), Format::pack_finite_weights(second[2], second[3])};
    store_matrices(place, word);
  }

  // The first layer, of this cluster's inputs. A warp without as many pairs as others leaves them out.

  // One peer's inputs are in registers before its gradient is there; of more there is no room.
  static constexpr bool kHoldsPeerInputs = kRanks == 2;
  struct NoInputs {};
  struct Inputs {
    Fragments half[kInputs][kHalves];
    std::conditional_t<kHoldsPeerInputs, Fragments[kInputs], NoInputs> peer;
  };

  /// The numbers of pairs have a copy each: between them branches would be in the way of instructions of one pair while those of
  /// another are waited for.
  MACHINE_DEVICE void update_first(const Arguments& a, const Factors& factors, const Inputs& x) {
    const Own own = load_own(first_gradient());
    static_assert(kInputs <= 2);
    if (input_pairs_ == kInputs)
      update_first<kInputs>(a, factors, own, x);
    else if (kInputs == 2 && input_pairs_ == 1)
      update_first<1>(a, factors, own, x);
  }
  template <int kCount>
  MACHINE_DEVICE void update_first(const Arguments& a, const Factors& factors, const Own& own,
                                   const Inputs& x) {
    const Slots slots = slots_of<kHidden>(a);
    float all[kRanks == 1 ? 1 : 2 * kCount][4] = {};
    if constexpr (kRanks > 1) {
      multiply_inputs<kCount>(all, own, x.half);
      add_peers<kRanks>(all, [&](int peer, float (&parts)[2 * kCount][4]) {
        const Own of_peer = take_own(a, peer, gradient_kind(1), member_);
        if constexpr (kHoldsPeerInputs) {
          multiply_inputs<kCount>(parts, of_peer, x.peer);
        } else {
          Fragments inputs[kInputs];
          load_peer_inputs(a, peer, inputs);
          multiply_inputs<kCount>(parts, of_peer, inputs);
        }
      });
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int slice = 0; slice < 2; ++slice) {
        float sum[4] = {};
        if constexpr (kRanks == 1) {
          std::uint32_t column[kGroups];
#pragma unroll
          for (int group = 0; group < kGroups; ++group)
            column[group] = x.half[i][group / kColumnGroups].word[2 * (group % kColumnGroups) + slice];
          multiply_own(sum, own, column);
        } else {
          copy(sum, all[2 * i + slice]);
        }
        const int place = 2 * i + slice;
        update_master(a, factors, first_[i][slice], sum, slots, place, slots.load(0, place),
                      slots.load(1, place));
      }
    }
    keep_first_weights<kCount>();
  }
  template <int kCount>
  MACHINE_DEVICE void keep_first_weights() const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < input_pairs_)
        keep_weights(first_weights() + (input_begin_ + i) * Places::kPairWeights + lane_ * 16, first_[i][0],
                     first_[i][1]);
  }
  MACHINE_DEVICE void load_input_columns(const Arguments& a, Inputs& x) const {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const int pair = input_begin_ + max(0, min(i, input_pairs_ - 1));
      const unsigned char* place;
      if constexpr (kStagesColumns)
        place = at(Places::kInputColumns + pair * Places::kPairBytes + lane_ * 16);
      else
        place = a.x_columns + own_rows(a, batch_) * plan_of(a).x_batch_bytes +
                (input_first() + pair) * Places::kPairBytes + lane_ * 16;
#pragma unroll
      for (int part = 0; part < 2 * kHalves; ++part)
        assign(x.half[i][part / 2], part % 2,
               kStagesColumns ? load_shared16(place + part * 512) : load_l2_16<true>(place + part * 512));
    }
    if constexpr (kHoldsPeerInputs) load_peer_inputs(a, 0, x.peer);
  }
  /// Sums of this warp's slices of a rank's inputs with its gradient.
  template <int kCount, class Pairs>
  MACHINE_DEVICE static void multiply_inputs(float (&sums)[2 * kCount][4], const Own& own,
                                             const Pairs& inputs) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const std::uint32_t (&word)[8] = words_of(inputs[i]);
#pragma unroll
      for (int slice = 0; slice < 2; ++slice)
        multiply_own(sums[2 * i + slice], own,
                     {word[slice], word[2 + slice], word[4 + slice], word[6 + slice]});
    }
  }
  MACHINE_DEVICE static const std::uint32_t (&words_of(const Fragments& pair))[8] { return pair.word; }
  MACHINE_DEVICE static const std::uint32_t (&words_of(const Fragments (&halves)[kHalves]))[8] {
    return halves[0].word;
  }
  MACHINE_DEVICE const unsigned char* peer_inputs(const Arguments& a, int peer) const {
    return a.x_columns + rows_of(batch_, a.rank ^ (peer + 1)) * plan_of(a).x_batch_bytes +
           input_first() * Places::kPairBytes;
  }
  MACHINE_DEVICE void load_peer_inputs(const Arguments& a, int peer, Fragments (&inputs)[kInputs]) const {
    const unsigned char* place = peer_inputs(a, peer) + lane_ * 16;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const int pair = input_begin_ + max(0, min(i, input_pairs_ - 1));
#pragma unroll
      for (int part = 0; part < 2; ++part)
        assign(inputs[i], part, load_l2_16<true>(place + pair * Places::kPairBytes + part * 512));
    }
  }

  // ---- a warp for what is small: a warp that did it besides would be waited for

  MACHINE_DEVICE void serve(const Arguments& a) {
    registers_decrease<kServingRegisters>();
    if (warp_ >= kWarps + kChainWarps + kServers) return;
    const int server = kServers == 1 ? 0 : warp_ - (kWarps + kChainWarps);
    if (server == 0) {
      stage(a, 0, a.x_rows, Places::kInputRows, next_batch_);
      keep_factors(0, load_factors(a, 0));
    }
    const bool first_of_all = member_ == 0 && cluster() == 0 && server == 0;
#pragma unroll 1
    for (int step = 0; step < a.steps; ++step) {
      begin_step(step);
      next_batch(a);
      step_sync();  // 1: behind it nobody reads the last inputs
      if (server == 0) {
        if constexpr (kStagesColumns) stage(a, 1, a.x_columns, Places::kInputColumns, batch_);
        if (step + 1 < a.steps) stage(a, 0, a.x_rows, Places::kInputRows, next_batch_);
        prefetch_peer_inputs(a);
      }
      const float2 next_factors = load_factors(a, min(step + 1, a.steps - 1));
      const Factors factors = factors_of_step(a);
      await_own(taken_barrier(kHidden), parity_);
      if (server == 0) update_bias(a, factors, kHidden + 1, load_own(dlogits()), kOutputsKind, 0);
      if (first_of_all) store_loss(a, step);
#pragma unroll 1
      for (int layer = kHidden - (server + kServers - 1) % kServers; layer >= 2; layer -= kServers) {
        await_own(taken_barrier(layer), parity_);
        update_bias(a, factors, layer, own_tiles(gradient_tiles(layer)), gradient_kind(layer), member_);
      }
      say_timed_out();
      step_sync();  // 2
      if (warp_any(timed_out_word() != 0)) return;
      if (server == 0) {
        update_bias(a, factors, 1, load_own(first_gradient()), gradient_kind(1), member_);
        keep_factors(stage_ ^ 1, next_factors);  // of the step before: their last reader was before barrier 2
      }
    }
    step_sync();
  }
  /// Into the L2: a cluster's, by one of its members each.
  MACHINE_DEVICE void prefetch_peer_inputs(const Arguments& a) const {
    if constexpr (kRanks > 1)
      if (lane_ == 0 && member_ < kPeers && input_count() > 0)
        bulk_prefetch(peer_inputs(a, member_),
                      static_cast<std::uint32_t>(input_count() * Places::kPairBytes));
  }
  /// What differs from step to step of a step's factors.
  MACHINE_DEVICE static float2 load_factors(const Arguments& a, int step) {
    if constexpr (kSlotCount < 2) return make_float2(0, 0);
    const Factors& factors = a.step_factors[step];
    return make_float2(factors.rate, factors.inverse_root);
  }
  MACHINE_DEVICE void keep_factors(int stage, const float2& factors) const {
    if (kSlotCount == 2 && lane_ == 0) *reinterpret_cast<float2*>(step_factors(stage)) = factors;
  }
  /// bias [16] of W(layer) by the sum over rows: a product with ones. Of peers' rows the gradient is `member`'s of `kind`.
  MACHINE_DEVICE void update_bias(const Arguments& a, const Factors& factors, int layer, const Own& gradient,
                                  int kind, int member) {
    const std::uint32_t ones = Format::pack(1.0f, 1.0f);
    float sums[1][4] = {};
    std::uint32_t column[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) column[group] = ones;
    multiply_own(sums[0], gradient, column);
    if constexpr (kRanks > 1)
      add_peers<kRanks>(sums, [&](int peer, float (&parts)[1][4]) {
        multiply_own(parts[0], take_own(a, peer, kind, member), column);
      });
    if ((lane_ & 3) != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = (lane_ >> 2) + 8 * half;
      float none = 0;  // of a slot that there is not
      update_parameter(a, factors, sums[0][2 * half], bias(layer)[column],
                       kSlotCount > 0 ? bias(layer, 1)[column] : none,
                       kSlotCount > 1 ? bias(layer, 2)[column] : none);
    }
  }
  MACHINE_DEVICE void store_loss(const Arguments& a, int step) const {
    float loss = loss_of(a, lane_);
    if constexpr (kHalves > 1) loss += loss_of(a, kGroupRows + lane_);
    store_mean_loss(a, step, lane_, loss);
  }
  /// Zero of a row beyond the batch.
  MACHINE_DEVICE static float loss_of(const Arguments& a, int place) {
    const float2& row = row_losses()[place];
    const float of_row = kHasLabels ? logf(row.x) - row.y : row.x / static_cast<float>(plan_of(a).classes);
    return place < plan_of(a).batch ? of_row : 0.0f;
  }
  /// Of every row the sum of its exponentials and its label's distance to the highest logit; or the sum of its outputs' losses.
  MACHINE_DEVICE static float2* row_losses() { return reinterpret_cast<float2*>(at(Places::kRowLosses)); }
  /// This cluster's inputs of a batch in one of the two orders, by one bulk copy.
  MACHINE_DEVICE void stage(const Arguments& a, int which, const unsigned char* memory, int offset,
                            int batch) const {
    if (lane_ != 0) return;
    const auto bytes = static_cast<std::uint32_t>(input_count() * Places::kPairBytes);
    fence_proxy_async_shared();
    barrier_arrive_expect(staging_barrier(which), bytes);
    if (bytes == 0) return;
    bulk_load(at(offset),
              memory + own_rows(a, batch) * plan_of(a).x_batch_bytes + input_first() * Places::kPairBytes,
              bytes, staging_barrier(which));
  }

  // ---- four warps that are the chain

  /// Of the first half, or of the second.
  MACHINE_DEVICE int group(int half = 0) const { return half * kColumnGroups + warp_ - kWarps; }
  /// visit(half). Two are a loop: code that a step executes once is fetched anew in every step.
  template <class Visit>
  MACHINE_DEVICE static void for_halves(Visit&& visit) {
    if constexpr (kHalves == 1) {
      visit(0);
    } else {
#pragma unroll 1
      for (int half = 0; half < kHalves; ++half) visit(half);
    }
  }
  /// Of columns g and g + 8 of this member's 16, two rows each.
  struct Two {
    std::uint32_t first, second;
  };
  struct Product {
    std::uint32_t weight[kMembers][4];
  };
  /// Columns of a group of 8 rows, two words of each member's.
  struct Columns {
    std::uint32_t word[2 * kMembers];
  };
  /// Where this lane publishes: from this member's shared memory to another's, half of the members each half of a warp.
  struct Lane {
    std::uint32_t to[kMembers / 2];
    std::uint32_t packet;
    int from;  // the first lane of the quad that has the column this lane publishes
  };
  MACHINE_DEVICE Lane place_lane() const {
    Lane lane;
    const std::uint32_t here = shared_address(shared_memory());
#pragma unroll
    for (int i = 0; i < kMembers / 2; ++i)
      lane.to[i] =
          remote_address(here, static_cast<std::uint32_t>(member_ + (lane_ >> 4) + 2 * i) % kMembers) - here;
    lane.packet =
        static_cast<std::uint32_t>(group() * kGroupTiles + member_ * kMemberTile + (lane_ & 15) * 16);
    lane.from = 4 * (lane_ & 7);
    return lane;
  }
  /// Weights as columns.
  MACHINE_DEVICE Product load_product(int matrix) const {
    Product product;
    const unsigned char* place = columns(matrix) + lane_ * 16;
#pragma unroll
    for (int i = 0; i < kMembers; ++i) load_matrices(place + i * kBlockBytes, product.weight[i]);
    return product;
  }
  /// One block of 16 x 16, transposed.
  MACHINE_DEVICE void load_transposed(const unsigned char* block, std::uint32_t (&weight)[4]) const {
    std::uint32_t word[4];
    load_matrices_transposed(block + lane_ * 16, word);
    weight[0] = word[0], weight[1] = word[2], weight[2] = word[1], weight[3] = word[3];
  }
  MACHINE_DEVICE Product load_rows(int layer) const {
    Product product;
#pragma unroll
    for (int i = 0; i < kMembers; ++i) load_transposed(rows(layer) + i * kBlockBytes, product.weight[i]);
    return product;
  }
  struct Chains {
    float sum[4][4];
    MACHINE_DEVICE void add(float (&total)[4]) const {
#pragma unroll
      for (int c = 0; c < 4; ++c) total[c] = (sum[0][c] + sum[1][c]) + (sum[2][c] + sum[3][c]);
    }
  };
  /// Chains of instructions that wait for each other; the first begins with what rows g and g + 8 have.
  MACHINE_DEVICE static Chains begin_chains(float first, float second) {
    return {{{first, first, second, second}, {}, {}, {}}};
  }
  MACHINE_DEVICE static void multiply(float (&sum)[4], const Product& product, const Columns& columns,
                                      const float2& bias = make_float2(0, 0)) {
    Chains chains = begin_chains(bias.x, bias.y);
#pragma unroll
    for (int i = 0; i < kMembers; ++i)
      Format::product(chains.sum[i % 4], as_uint4(product.weight[i]), columns.word[2 * i],
                      columns.word[2 * i + 1]);
    chains.add(sum);
  }
  MACHINE_DEVICE float2 load_bias(int layer) const {
    const float* own = bias(layer) + (lane_ >> 2);
    return make_float2(own[0], own[8]);
  }
  MACHINE_DEVICE static float activated(float z) {
    return kIsRelu ? relu(z) : rules::activated_roughly(kActivation, z);
  }
  MACHINE_DEVICE static Two activated(const float (&sum)[4]) {
    return {Format::pack(activated(sum[0]), activated(sum[1])),
            Format::pack(activated(sum[2]), activated(sum[3]))};
  }
  /// What the way back takes: outputs, or sums.
  MACHINE_DEVICE static Two kept_of(const float (&sum)[4], const Two& hidden) {
    return kKeepsSums ? Two{Format::pack(sum[0], sum[1]), Format::pack(sum[2], sum[3])} : hidden;
  }
  MACHINE_DEVICE static float half_of(std::uint32_t word, int half) {
    if constexpr (kSplit) return bits_to_float(half == 0 ? word << 16 : word & 0xffff0000u);
    return fp16_value(word >> (16 * half));
  }
  /// Two gradients, through the slopes that `kept` stands for.
  MACHINE_DEVICE static std::uint32_t passed_back(float first, float second, std::uint32_t kept) {
    if constexpr (kIsRelu) return Format::pack(first, second) & Format::positive(kept);
    return Format::pack(rules::passed_back_roughly(kActivation, half_of(kept, 0), first),
                        rules::passed_back_roughly(kActivation, half_of(kept, 1), second));
  }
  MACHINE_DEVICE static Two passed_back(const float (&sum)[4], const Two& kept) {
    return {passed_back(sum[0], sum[1], kept.first), passed_back(sum[2], sum[3], kept.second)};
  }
  /// A lane sends the 8 rows of one column, which the lanes of a quad have; half of the lanes one of the first slice, the others
  /// of the second. In each round a lane hands out what either of them takes.
  MACHINE_DEVICE void publish(const Arguments& a, const Lane& lane, int exchange, const unsigned char* tiles,
                              int half, const Two& two) const {
    std::uint32_t place = shared_address(tiles + half * kHalfTiles) + lane.packet,
                  barrier = exchange_barrier(exchange, group(half));
    compute_now(place);  // else the sums below are kept for the whole launch
    compute_now(barrier);
    const bool of_second = (lane_ & 8) != 0;
    std::uint32_t round[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      round[i] = shuffle_from((lane_ & 3) == i ? two.first : two.second, lane.from + (of_second ? i ^ 1 : i));
    const uint4 packet = of_second ? make_uint4(round[1], round[0], round[3], round[2])
                                   : make_uint4(round[0], round[1], round[2], round[3]);
    if (exchange == a.lost_exchange) return;
#pragma unroll
    for (int i = 0; i < kMembers / 2; ++i) store_async16(place + lane.to[i], packet, barrier + lane.to[i]);
  }
  MACHINE_DEVICE void take(const Arguments& a, int exchange, const unsigned char* tiles, int half,
                           Columns& columns) {
    waiter_.await(a, exchange_barrier(exchange, group(half)), kHidden == 1 ? paired_parity_ : parity_,
                  exchange);
    const unsigned char* place = tiles + group(half) * kGroupTiles + lane_ * 16;
#pragma unroll
    for (int i = 0; i < kMembers / 2; ++i) read_two_members(place, i, columns);
  }
  MACHINE_DEVICE static void read_two_members(const unsigned char* place, int i, Columns& columns) {
    std::uint32_t word[4];
    load_matrices_transposed(place + i * 512, word);
#pragma unroll
    for (int j = 0; j < 4; ++j) columns.word[4 * i + j] = word[j];
  }
  MACHINE_DEVICE static void keep_two_members(unsigned char* place, int i, const Columns& columns) {
    const std::uint32_t word[4] = {columns.word[4 * i], columns.word[4 * i + 1], columns.word[4 * i + 2],
                                   columns.word[4 * i + 3]};
    store_matrices_transposed(place + i * 512, word);
  }
  /// When the buffer is taken and what depends on it is on its way. A completed phase stays visible until the next one is
  /// complete too.
  MACHINE_DEVICE void expect_next(int exchange, int half) const {
    if (lane_ == 0 && !waiter_.timed_out)
      barrier_arrive_expect(exchange_barrier(exchange, group(half)), exchange_bytes(exchange));
  }
  MACHINE_DEVICE void expect_next(int exchange) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) expect_next(exchange, half);
  }
  /// Of a group; h(L) may come with its sums.
  MACHINE_DEVICE static constexpr std::uint32_t exchange_bytes(int exchange) {
    return kKeepsSums && kHidden > 1 && exchange == hidden_exchange(kHidden) ? 2 * kGroupTiles : kGroupTiles;
  }
  /// The rows of W(layer) from everybody.
  MACHINE_DEVICE void await_rows(const Arguments& a, int layer) {
    waiter_.await(a, rows_barrier(layer), parity_, rows_exchange(layer));
  }
  MACHINE_DEVICE void expect_next_rows(int layer) const {
    if (group() == 0 && lane_ == 0 && !waiter_.timed_out)
      barrier_arrive_expect(rows_barrier(layer), Places::kMatrix);
  }
  /// By every thread of the chain. Of a lane that arrives for its warp racecheck follows only what that lane itself has written or
  /// read.
  MACHINE_DEVICE static void say_taken(int layer) { barrier_arrive(taken_barrier(layer)); }

  MACHINE_DEVICE void chain(const Arguments& a) {
    registers_increase<kChainRegisters>();
    const Lane lane = place_lane();
    await_own(staging_barrier(0), 0);
    InputRows x = load_input_rows();
#pragma unroll 1
    for (int step = 0; step < a.steps; ++step) {
      begin_step(step);
      next_batch(a);
      Labels labels;
      if constexpr (kHalves == 1) labels = load_labels(a);
      step_sync();  // 1
      float sum[kHalves][4];
      make_first(a, x, sum);
      Two hidden[kHalves], kept[kHalves];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        hidden[half] = activated(sum[half]);
        kept[half] = kept_of(sum[half], hidden[half]);
      }
      if constexpr (kLastIsLate && !kThirdIsLate) await_own(last_barrier(kLastRead), parity_);
      if constexpr (kSecondIsInH2) await_own(read_barrier(2), parity_);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        publish(a, lane, hidden_exchange(1), hidden_tiles(1), half, hidden[half]);
        if (kHidden > 1) keep_own(1, half, hidden[half], kept[half]);
        send_hidden(a, 1, hidden[half]);
      }

      Columns columns;
#pragma unroll
      for (int layer = 2; layer <= kHidden; ++layer) {
        await_rows(a, layer);
        const Product product = load_rows(layer);
        const float2 bias = load_bias(layer);
        if (layer == kHidden && !kSecondIsInH2)
          await_own(read_barrier(2), kSecondIsLate ? parity_ : parity_ ^ 1);
        for_halves([&](int half) {
          take(a, hidden_exchange(layer - 1), hidden_tiles(layer - 1), half, columns);
          multiply(sum[0], product, columns, bias);
          const Two made = activated(sum[0]), left = kept_of(sum[0], made);
          if (kThirdIsLate && layer == kHidden - 1) await_own(last_barrier(kLastRead), parity_);
          publish(a, lane, hidden_exchange(layer), hidden_tiles(layer), half, made);
          if (kKeepsSums && layer == kHidden)
            publish(a, lane, hidden_exchange(layer), last_sums(), half, left);
          if (kThirdIsLate && layer == 2) await_own(read_barrier(3), parity_);
          if (layer < kHidden) keep_own(layer, half, made, left);
          send_hidden(a, layer, made);
          expect_next(hidden_exchange(layer - 1), half);
        });
        expect_next_rows(layer);
      }

      if constexpr (kLastIsLate) await_own(last_barrier(kLastUpdated), parity_);
      if constexpr (kHalves > 1) labels = load_labels(a);
      loss(a, lane, labels, kept);
      const bool goes_on = step + 1 < a.steps;
      if (kHidden <= 2) {
        if (goes_on) await_own(staging_barrier(0), static_cast<std::uint32_t>(step + 1) & 1);
        x = load_input_rows();
      }
#pragma unroll
      for (int layer = kHidden - 1; layer >= 2; --layer) {
        const Product product = load_product(layer - 2);
        Two below;
        if constexpr (kHalves == 1) below = kept_two(kept_tile(layer - 1), 0);
        if (layer == 2) {
          if (goes_on) await_own(staging_barrier(0), static_cast<std::uint32_t>(step + 1) & 1);
          x = load_input_rows();
        }
        if (layer >= 4) await_own(read_barrier(layer + 1), parity_);
        for_halves([&](int half) {
          const bool is_last = half == kHalves - 1;
          if constexpr (kHalves > 1) below = kept_two(kept_tile(layer - 1), half);
          take(a, gradient_exchange(layer), gradient_tiles(layer), half, columns);
          if (layer == 2 && is_last) say_taken(layer);
          multiply(sum[0], product, columns);
          const Two gradient = passed_back(sum[0], below);
          if (layer == 2) send_gradient(a, 1, gradient);  // the last that a step waits for
          if (layer > 2) {
            publish(a, lane, gradient_exchange(layer - 1), gradient_tiles(layer - 1), half, gradient);
            send_gradient(a, layer - 1, gradient);
            if (is_last) say_taken(layer);
            expect_next(gradient_exchange(layer), half);
          } else {
            keep_two(first_gradient(), half, gradient);
          }
        });
      }
      if (waiter_.timed_out && lane_ == 0) timed_out_words()[kRanks == 1 ? group() : warp_] = 1;
      step_sync();  // 2
      if (kHidden > 2) expect_next(gradient_exchange(2));
      if (warp_any(timed_out_word() != 0)) return;
    }
    step_sync();
  }
  /// To the other ranks, of this warp's rows.
  MACHINE_DEVICE void send(const Arguments& a, int kind, const Two& two) const {
    if constexpr (kRanks > 1)
      if (kClusters == 1 || cluster() == group())
        peers_.send(a, kind, member_, group(), lane_, two.first, two.second);
  }
  MACHINE_DEVICE void send_hidden(const Arguments& a, int layer, const Two& two) const {
    send(a, hidden_kind(layer), two);
  }
  MACHINE_DEVICE void send_gradient(const Arguments& a, int layer, const Two& two) const {
    send(a, gradient_kind(layer), two);
  }
  /// This lane's two rows of a sum are this one and the next.
  MACHINE_DEVICE int first_row(int half) const { return 8 * group(half) + 2 * (lane_ & 3); }
  /// Into this group's two blocks.
  MACHINE_DEVICE void keep_two(unsigned char* blocks, int half, const Two& two) const {
    auto* place = reinterpret_cast<std::uint32_t*>(blocks + group(half) * 2 * kBlock) + lane_;
    place[0] = two.first;
    place[kBlock / 4] = two.second;
  }
  /// This member's part of h(layer), and what the way back takes of it.
  MACHINE_DEVICE void keep_own(int layer, int half, const Two& hidden, const Two& kept) const {
    keep_two(own_hidden(layer), half, hidden);
    if constexpr (kKeepsSums) keep_two(own_sums(layer), half, kept);
  }
  MACHINE_DEVICE unsigned char* kept_tile(int layer) const {
    return kKeepsSums ? own_sums(layer) : own_hidden(layer);
  }
  /// What this lane has left there.
  MACHINE_DEVICE Two kept_two(const unsigned char* blocks, int half) const {
    const auto* place = reinterpret_cast<const std::uint32_t*>(blocks + group(half) * 2 * kBlock) + lane_;
    return {place[0], place[kBlock / 4]};
  }
  /// Of this warp's groups of 8 rows, this cluster's inputs.
  struct InputRows {
    std::uint32_t word[kPairs][2 * kHalves];
  };
  MACHINE_DEVICE InputRows load_input_rows() const {
    InputRows rows;
    const auto* place =
        reinterpret_cast<const std::uint32_t*>(at(Places::kInputRows + (group() >> 1) * 512 + lane_ * 16)) +
        (group() & 1);
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
#pragma unroll
      for (int j = 0; j < 2 * kHalves; ++j)
        rows.word[i][j] = place[i * Places::kPairBytes / 4 + j / 2 * (kHalfPair / 4) + 2 * (j % 2)];
    return rows;
  }
  /// The first layer's sums, without ReLU.
  MACHINE_DEVICE void make_first(const Arguments& a, const InputRows& rows, float (&sum)[kHalves][4]) {
    Chains chains[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) chains[half] = begin_chains(0, 0);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      std::uint32_t weight[4];
      load_matrices(first_weights() + i * Places::kPairWeights + lane_ * 16, weight);
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        Format::product(chains[half].sum[i % 4], as_uint4(weight), rows.word[i][2 * half],
                        rows.word[i][2 * half + 1]);
    }
    float4 total[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      chains[half].add(sum[half]);
      total[half] = make_float4(sum[half][0], sum[half][1], sum[half][2], sum[half][3]);
    }
    const float2 bias = load_bias(1);
    if constexpr (kClusters > 1)
      cluster_sum_.add_all(a, waiter_, cluster(), member_, group(), kColumnGroups, true, total,
                           a.lost_exchange == kFirstSum);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      sum[half][0] = total[half].x + bias.x, sum[half][1] = total[half].y + bias.x;
      sum[half][2] = total[half].z + bias.y, sum[half][3] = total[half].w + bias.y;
    }
  }

  /// -1 of a row that there is not.
  struct Labels {
    int row[kHalves][2];
  };
  MACHINE_DEVICE Labels load_labels(const Arguments& a) const {
    Labels labels;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = first_row(half) + i;
        labels.row[half][i] = kHasLabels && row < plan_of(a).batch
                                  ? a.labels[std::int64_t{own_rows(a, batch_)} * plan_of(a).batch + row]
                                  : -1;
      }
    return labels;
  }
  /// From h(L) to the publication of d(L - 1), or to the first layer's gradient. `own`: what the way back takes of this member's h(L).
  MACHINE_DEVICE void loss(const Arguments& a, const Lane& lane, const Labels& labels,
                           const Two (&own)[kHalves]) {
    const int g = lane_ >> 2;
    const Product last = load_product(kLastMatrix);
    Product across;  // the same, of the gradient below: [own columns, classes]
    std::uint32_t own_across[4];
    if constexpr (kHidden > 1) {
#pragma unroll
      for (int i = 0; i < kMembers; ++i)
        load_matrices_transposed(columns(kLastMatrix) + lane_ * 16 + i * kBlockBytes, across.weight[i]);
    } else {
      load_transposed(columns(kLastMatrix) + member_ * kBlockBytes, own_across);
    }
    float2 bias = load_bias(kHidden + 1);  // those classes that are not there have no chance
    float target[kHalves][4];
    if constexpr (kHasLabels) {
      if (g >= plan_of(a).classes) bias.x = -INFINITY;
      if (g + 8 >= plan_of(a).classes) bias.y = -INFINITY;
    } else {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) load_targets(a, half, target[half]);
    }
    Columns columns[kHalves];
    float logit[kHalves][4];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      take(a, hidden_exchange(kHidden), hidden_tiles(kHidden), half, columns[half]);
      multiply(logit[half], last, columns[half], bias);
    }
    Product product;
    if constexpr (kHidden > 1) product = load_product(kHidden - 2);

    // Classes g and g + 8 of two rows: a row is in eight lanes.
    float gradient[kHalves][4], beneath[kHalves][4], row_sum[kHalves][2];
    Two kept[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      if constexpr (kHasLabels)
        loss_of_labels(a, half, labels.row[half], logit[half], gradient[half], beneath[half], row_sum[half]);
      else
        loss_of_targets(a, half, logit[half], target[half], gradient[half], row_sum[half]);
      kept[half] = {Format::pack(gradient[half][0], gradient[half][1]),
                    Format::pack(gradient[half][2], gradient[half][3])};
    }
    const auto keep_losses = [&] {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        keep_two(dlogits(), half, kept[half]);
        if (kHasLabels && member_ == 0)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            if (g + 8 * (c >> 1) == labels.row[half][c & 1])
              row_losses()[first_row(half) + (c & 1)] = make_float2(row_sum[half][c & 1], beneath[half][c]);
        if (!kHasLabels && member_ == 0 && g == 0)
#pragma unroll
          for (int i = 0; i < 2; ++i) row_losses()[first_row(half) + i] = make_float2(row_sum[half][i], 0);
      }
    };
    // It is off the chain behind it; but with two halves there are no registers to keep this until then.
    if constexpr (kHalves > 1) keep_losses();
    std::uint32_t first_classes[kHalves], others[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      first_classes[half] = transpose8x8(kept[half].first);
      others[half] = transpose8x8(kept[half].second);
    }
    if constexpr (kHidden == 1) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        float sum[4] = {};
        Format::product(sum, as_uint4(own_across), first_classes[half], others[half]);
        const Two next = passed_back(sum, own[half]);
        send_gradient(a, 1, next);
        keep_two(first_gradient(), half, next);
      }
    } else {
      // The gradient below: rows of the batch are the rows of an instruction, eight of its sixteen, so that what it leaves is at
      // once what the next product takes. Two halves' columns are read again, as there is no room for them in registers.
      Two below[kHalves], of_below;
      std::uint32_t sums[kHalves][4];  // of two members' columns
      Chains chains[kHalves];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        below[half] = kept_two(kept_tile(kHidden - 1), half);
        chains[half] = begin_chains(0, 0);
      }
#pragma unroll
      for (int i = 0; i < kMembers; ++i)
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          if (kHalves > 1 && i % 2 == 0)
            read_two_members(hidden_tiles(kHidden) + group(half) * kGroupTiles + lane_ * 16, i / 2,
                             columns[half]);
          const uint4 rows = make_uint4(first_classes[half], 0, others[half], 0);
          if (kKeepsSums && i % 2 == 0)
            load_matrices_transposed(last_sums() + group(half) * kGroupTiles + lane_ * 16 + i / 2 * 512,
                                     sums[half]);
#pragma unroll
          for (int slice = 0; slice < 2; ++slice) {
            float sum[4] = {};
            Format::product(sum, rows, across.weight[i][2 * slice], across.weight[i][2 * slice + 1]);
            std::uint32_t& word = columns[half].word[2 * i + slice];
            word = passed_back(sum[0], sum[1], kKeepsSums ? sums[half][2 * (i % 2) + slice] : word);
          }
          Format::product(chains[half].sum[i % 4], as_uint4(product.weight[i]), columns[half].word[2 * i],
                          columns[half].word[2 * i + 1]);
          if (kHalves > 1 && i % 2 == 1)
            keep_two_members(gradient_tiles(kHidden) + group(half) * kGroupTiles + lane_ * 16, i / 2,
                             columns[half]);
        }
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        float sum[4];
        chains[half].add(sum);
        const Two next = passed_back(sum, below[half]);
        if constexpr (kHidden == 2) send_gradient(a, 1, next);
        of_below = next;
        if constexpr (kHidden > 2)
          publish(a, lane, gradient_exchange(kHidden - 1), gradient_tiles(kHidden - 1), half, next);
        else
          keep_two(first_gradient(), half, next);
      }
      // What updates take.
      if constexpr (kHalves == 1) {
        unsigned char* place = gradient_tiles(kHidden) + group() * kGroupTiles + lane_ * 16;
#pragma unroll
        for (int i = 0; i < kMembers / 2; ++i) keep_two_members(place, i, columns[0]);
      }
      if constexpr (kRanks > 1) {
        if constexpr (kHidden > 2) send_gradient(a, kHidden - 1, of_below);
        warp_sync();
        const auto* own_tile = reinterpret_cast<const std::uint32_t*>(
                                   gradient_tiles(kHidden) + group() * kGroupTiles + member_ * kMemberTile) +
                               lane_;
        send_gradient(a, kHidden, {own_tile[0], own_tile[kBlock / 4]});
      }
    }
    if (kRanks > 1 && member_ == 0) send(a, kOutputsKind, kept[0]);
    expect_next(hidden_exchange(kHidden));
    if constexpr (kHalves == 1) keep_losses();
    say_taken(kHidden);
  }
  /// Softmax of both rows: their gradients, the logits beneath the highest, and the sums of their exponentials.
  MACHINE_DEVICE void loss_of_labels(const Arguments& a, int half, const int (&label)[2],
                                     const float (&logit)[4], float (&gradient)[4], float (&beneath)[4],
                                     float (&row_sum)[2]) const {
    const int g = lane_ >> 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float highest = fmaxf(logit[i], logit[2 + i]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) highest = fmaxf(highest, shuffle_xor(highest, mask));
#pragma unroll
      for (int c = i; c < 4; c += 2) {
        beneath[c] = logit[c] - highest;
        gradient[c] = exponential(beneath[c]);
      }
      row_sum[i] = gradient[i] + gradient[2 + i];
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) row_sum[i] += shuffle_xor(row_sum[i], mask);
      const float inverse =
          first_row(half) + i < plan_of(a).batch ? divide(a.gradient_scale, row_sum[i]) : 0.0f;
#pragma unroll
      for (int c = i; c < 4; c += 2)
        gradient[c] = gradient[c] * inverse - (g + 8 * (c >> 1) == label[i] ? a.gradient_scale : 0.0f);
    }
  }
  MACHINE_DEVICE bool is_output(const Arguments& a, int half, int c) const {
    return first_row(half) + (c & 1) < plan_of(a).batch && (lane_ >> 2) + 8 * (c >> 1) < plan_of(a).classes;
  }
  /// Of this lane's logits.
  MACHINE_DEVICE void load_targets(const Arguments& a, int half, float (&target)[4]) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const std::int64_t row =
          std::int64_t{own_rows(a, batch_)} * plan_of(a).batch + first_row(half) + (c & 1);
      target[c] =
          is_output(a, half, c) ? a.targets[row * plan_of(a).classes + (lane_ >> 2) + 8 * (c >> 1)] : 0.0f;
    }
  }
  /// The gradient by each logit, and of both rows the sum of the losses of their outputs.
  MACHINE_DEVICE void loss_of_targets(const Arguments& a, int half, const float (&logit)[4],
                                      const float (&target)[4], float (&gradient)[4],
                                      float (&row_sum)[2]) const {
    row_sum[0] = row_sum[1] = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const rules::LossTerm term = rules::loss_term(kLoss, logit[c], target[c]);
      gradient[c] = is_output(a, half, c) ? term.gradient * a.gradient_scale : 0.0f;
      if (is_output(a, half, c)) row_sum[c & 1] += term.loss;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) row_sum[i] += shuffle_xor(row_sum[i], mask);
  }

  // ---- start and end of a launch, by the eight

  /// Where a warp's masters of one matrix stand on their way from and to the flat parameters, fp32 [slices] [32 lanes] [4]: in place of
  /// tiles, before others send any and when all have been taken. So this is a loop that takes few registers.
  static constexpr int kPassageSlices = kSlices > 2 * kInputs ? kSlices : 2 * kInputs;
  MACHINE_DEVICE float4* passage() const {
    const int thread = thread_index_here();  // nobody has a register for it until the end
    return reinterpret_cast<float4*>(at(Places::kLower)) + thread / 32 * (kPassageSlices * 32) + thread % 32;
  }
  /// visit(value, whether it exists, its place in the flat parameters) for `slices` masters [16, 8] of W(layer), whose rows
  /// are outputs, or columns of the weight. `values`: of this lane, slice by slice. `column`: the first of the others.
  template <class Visit>
  MACHINE_DEVICE void for_passage(const Arguments& a, float4* values, int layer, int slices, int row,
                                  int column, bool rows_are_outputs, Visit&& visit) const {
    const int in = plan_of(a).widths[layer - 1], out = plan_of(a).widths[layer];
#pragma unroll 1
    for (int i = 0; i < 4 * slices; ++i) {
      const int c = i % 4, x = row + (c >> 1) * 8 + (lane_ >> 2),
                y = column + i / 4 * 8 + 2 * (lane_ & 3) + (c & 1);
      const int output = rows_are_outputs ? x : y, place = rows_are_outputs ? y : x;
      visit(reinterpret_cast<float*>(values + i / 4 * 32)[c], output < out && place < in,
            plan_of(a).weight_begin[layer - 1] + std::int64_t{output} * in + place);
    }
  }
  MACHINE_DEVICE static void load_master(Master& master, const float4* from) {
    const float4 four = *from;
    master[0] = four.x, master[1] = four.y, master[2] = four.z, master[3] = four.w;
  }
  /// This warp's masters of all layers. With kLoads into the masters what visit() leaves in the passage, else it sees them there.
  template <bool kLoads, class Visit>
  MACHINE_DEVICE void for_masters(const Arguments& a, Visit&& visit) {
    const auto store = [&](int slice, const Master& master) {
      passage()[slice * 32] = make_float4(master[0], master[1], master[2], master[3]);
    };
    const auto visit_first = [&] { for_first(a, passage(), visit); };
    if (kLoads) visit_first();
#pragma unroll
    for (int i = 0; i < kInputs; ++i)
#pragma unroll
      for (int slice = 0; slice < 2; ++slice)
        if (kLoads)
          load_master(first_[i][slice], passage() + (2 * i + slice) * 32);
        else
          store(2 * i + slice, first_[i][slice]);
    if (!kLoads) visit_first();
    for_masters_from<0, kLoads>(a, visit, store);
  }
  template <int kMatrix, bool kLoads, class Visit, class Store>
  MACHINE_DEVICE void for_masters_from(const Arguments& a, Visit& visit, const Store& store) {
    const auto visit_all = [&] { for_matrix<kMatrix>(a, passage(), visit); };
    if (kLoads) visit_all();
    for_slices<kMatrix>([&](int i, Master& master) {
      if (kLoads)
        load_master(master, passage() + i * 32);
      else
        store(i, master);
    });
    if (!kLoads) visit_all();
    if constexpr (kMatrix != kLastMatrix) for_masters_from<kMatrix + 1, kLoads>(a, visit, store);
  }
  template <class Visit>
  MACHINE_DEVICE void for_first(const Arguments& a, float4* values, Visit&& visit) const {
    for_passage(a, values, 1, 2 * input_pairs_, kColumnOwn * member_, (input_first() + input_begin_) * 16,
                true, visit);
  }
  template <int kMatrix, class Visit>
  MACHINE_DEVICE void for_matrix(const Arguments& a, float4* values, Visit&& visit) const {
    constexpr bool kIsLast = kMatrix == kLastMatrix;
    for_passage(a, values, kMatrix + 2, kSlices, kIsLast ? 0 : kColumnOwn * member_, warp_ * (kSlices * 8),
                kIsLast, visit);
  }
  /// visit(value, whether it exists, its place among the flat ones, slot) where slots lie.
  template <class Visit>
  MACHINE_DEVICE void for_slots(const Arguments& a, Visit&& visit) const {
#pragma unroll 1
    for (int slot = 0; slot < kSlotCount; ++slot) {
      const auto visit_one = [&](float& own, bool exists, std::int64_t place) {
        visit(own, exists, place, slot);
      };
      const Slots first = slots_of<kHidden>(a);
      for_first(a, first.place + slot * first.stride, visit_one);
      for_slots_from<0>(a, slot, visit_one);
    }
  }
  template <int kMatrix, class Visit>
  MACHINE_DEVICE void for_slots_from(const Arguments& a, int slot, const Visit& visit) const {
    const Slots slots = slots_of<kMatrix>(a);
    for_matrix<kMatrix>(a, slots.place + slot * slots.stride, visit);
    if constexpr (kMatrix != kLastMatrix) for_slots_from<kMatrix + 1>(a, slot, visit);
  }
  /// Of W(layer), which is another for each warp; at the end not the one of the start, whose place would be kept all the while.
  /// which: 1 or 2 for a slot.
  template <class Visit>
  MACHINE_DEVICE void for_biases(const Arguments& a, int layer, int which, Visit&& visit) const {
    if (layer > kHidden + 1 || lane_ >= kColumnOwn) return;
    const int column = layer <= kHidden ? kColumnOwn * member_ + lane_ : lane_;
    visit(bias(layer, which)[lane_], column < plan_of(a).widths[layer],
          plan_of(a).bias_begin[layer - 1] + column);
  }
  MACHINE_DEVICE void load(const Arguments& a) {
    const auto take = [&](float& own, bool exists, std::int64_t place) {
      own = exists ? a.parameters[place] : 0.0f;
    };
    for_masters<true>(a, take);
    for_biases(a, warp_ + 1, 0, take);
    for_slots(a, [&](float& own, bool exists, std::int64_t place, int slot) {
      own = exists ? a.slots[slot][place] : 0.0f;
    });
#pragma unroll 1
    for (int slot = 0; slot < kSlotCount; ++slot)
      for_biases(a, warp_ + 1, 1 + slot, [&](float& own, bool exists, std::int64_t place) {
        own = exists ? a.slots[slot][place] : 0.0f;
      });
#pragma unroll 1
    for (int slice = 0; slice < kPassageSlices; ++slice) passage()[slice * 32] = make_float4(0, 0, 0, 0);
  }
  /// What clusters do not divide comes from the first, and the mirror from the last; the last layer from the first member, and
  /// its mirror from the last.
  MACHINE_DEVICE void store(const Arguments& a) {
    const std::int64_t last_begin = plan_of(a).weight_begin[kHidden], divided_end = plan_of(a).bias_begin[0];
    const auto is_mine = [&](std::int64_t place) {
      return (place < divided_end || cluster() == 0) && (place < last_begin || member_ == 0);
    };
    for_masters<false>(a, [&](const float& own, bool exists, std::int64_t place) {
      if (!exists) return;
      if (is_mine(place)) a.parameters[place] = own;
      if (cluster() == kClusters - 1 && (place < last_begin || member_ == kMembers - 1))
        a.mirror[place] = own;
    });
    for_biases(a, kWarps - warp_, 0, [&](const float& own, bool exists, std::int64_t place) {
      if (exists && is_mine(place)) a.parameters[place] = own;
    });
    for_slots(a, [&](const float& own, bool exists, std::int64_t place, int slot) {
      if (exists && is_mine(place)) a.slots[slot][place] = own;
    });
#pragma unroll 1
    for (int slot = 0; slot < kSlotCount; ++slot)
      for_biases(a, kWarps - warp_, 1 + slot, [&](const float& own, bool exists, std::int64_t place) {
        if (exists && is_mine(place)) a.slots[slot][place] = own;
      });
  }

  /// Extra pairs of inputs go to the last.
  MACHINE_DEVICE static int part_begin(int count, int parts, int part) {
    return part * (count / parts) + max(0, part - (parts - count % parts));
  }

  const int warp_, lane_, member_;
  const int input_begin_, input_pairs_;  // pairs of inputs: of this cluster's, this warp's
  SliceWaiter waiter_;
  ClusterSum<kClusters == 1 ? 2 : kClusters, kGroups> cluster_sum_;  // unused by one
  Peers peers_;
  int batch_ = 0, next_batch_;  // of this step and the next
  int stage_ = 0;
  std::uint32_t parity_ = 0, paired_parity_ = 0;
  // Masters: of the first layer; of the others, or what is left of them (SplitMaster).
  Master first_[kInputs][2];
  Master masters_[kSplit ? 1 : kShape.register_masters][kSlices];
  std::uint32_t low_[kSplit ? kHidden : 1][kSlices / 2][4];
};

template <class Step>
__global__ void __launch_bounds__(Step::kThreadCount, 1)
    column_steps(const __grid_constant__ typename Step::Arguments arguments) {
  Step(arguments).run(arguments);
}

}  // namespace headroom::resident
