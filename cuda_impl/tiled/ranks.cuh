// What the ranks of a network tell each other: GPUs of one host, each with its own rows of every batch.
//
// All ranks have the same lists (schedule.h). A rank makes the tiles of the chain for its own rows alone, and all tiles of weights: the sum
// of a weight gradient goes over the rows of all ranks, in the same order everywhere, so that all have the same bits. What it is made of
// travels, activations and gradients; the data set is whole on each rank. The rows of rank r are rows r * batch on of every matrix
// [slices][ranks * batch][columns].
//
// Who has made a tile of the chain stores it to its own memory and says so to its own rank as on one GPU. Only then it stores the tile to
// each peer's memory and adds to the peer's counters. So the chain never waits for the link, only weight gradients do.
//   own rank:  stores; a barrier; fence_release_gpu(); signals[0] += 1 (gpu), signals[1..] += 1 (sys)
//   peers:     stores; a barrier; fence_release_sys(); signals[1..] += 1 in the peer's memory (sys)
//   weights:   load_relaxed_sys(counter) until tiles of all ranks are there; fence_acquire_sys(); fence_proxy_async_global(); copies
// A counter to which peers add is read and written at system scope by its own GPU, too.
//
// Why nobody overwrites what a peer has yet to read. Within a GPU the waits of the lists see to it, as on one GPU. Between GPUs, let rank
// A store a tile of layer l of step s at rank B. Its place held a tile of step s - 2, as activations and, with several ranks, gradients
// are there twice. B reads that in weight gradients of step s - 2 and nowhere else.
//   1. A makes the tile behind tasks of its step s that have waited for all weights of its step s - 1, of the first layer at least.
//   2. A's weight gradients of layer 1 in step s - 1 have waited for the gradients of that layer of all ranks, so for B's of step s - 1.
//   3. B made those behind its whole forward pass of the same rows in step s - 1, which has waited for B's weights of step s - 2 of every
//      layer, that is for all weight gradients of B's step s - 2; parts of them are waited for by their updates.
// So they have read. One copy of the gradients would not do: 1 to 3 say nothing about B's weight gradients of step s - 1.
//
// Counters of all ranks are there twice as well, for steps in turn. A tells itself of a tile before it tells B; so another tile of A may
// reach B's counter for step s + 1 before the first one has for step s, and a single counter would say enough while a tile is missing.
// For step s + 2 nobody adds so early: by 1 to 3 all weight gradients of B's step s are done then, which have waited for every tile of step s.
//
// tests/cuda/tiled_schedule_test.cpp plays both through.
//
// Nothing of this ends with a launch. Counters go on from launch to launch (RankArguments::steps_before), as the parity does, so a rank may
// store for a launch that its peer has not begun.
//
// No circle: if no rank could go on, take the earliest task of those that wait, by its step and its place in the order of the lists, of
// any rank. It waits for tasks before it in that order only, on whichever rank, and these are done.
#pragma once

#include "machine/memory.cuh"
#include "machine/peers.cuh"
#include "machine/release.cuh"
#include "tiled/list.cuh"

namespace headroom::tiled {

/// Rows over which weight gradients sum.
template <bool kRanked>
MACHINE_DEVICE int joined_rows(const Arguments& a) {
  if constexpr (kRanked)
    return a.ranks.joined;
  else
    return a.batch;
}
/// Which of the copies of the gradients a step uses: with one rank there is one.
template <bool kRanked>
MACHINE_DEVICE int gradient_slice(const StepPlace& step) {
  if constexpr (kRanked)
    return step.parity;
  else
    return 0;
}

/// By one thread, behind a barrier of those who have stored to the peers' memory: the task's signals from the first of all ranks to `last`.
MACHINE_DEVICE void signal_peers(const Arguments& a, const Task& task, int step_of_launch, int last) {
  machine::fence_release_sys();
#pragma unroll 1
  for (int peer = 0; peer < a.ranks.peers; ++peer)
#pragma unroll
    for (int i = kFirstOfAllRanks; i < 3; ++i)
      if (i <= last && task.signals[i] >= 0)
        machine::add_relaxed_sys(a.ranks.counters[peer] + place_of_shared(a, task.signals[i], step_of_launch),
                                 1u);
}

/// A rectangle of a matrix: of `rows` rows the values from first_column on, `columns` of them, which begin at a multiple of 16 bytes.
struct Rectangle {
  int slice, first_row, rows, first_column, columns;
};
/// A rectangle from where it lies in this rank's memory to the peers', 16 bytes at a time, by `threads` threads behind a barrier of
/// those who have stored it. A function of its own: every task of the chain in the portable kernel has it behind what its rank waits for.
template <int kValueBytes>
MACHINE_DEVICE_CALLED void send_rectangle(const Arguments& a, const Rows& from, const PeerRows& to,
                                          const Rectangle& what, int thread, int threads) {
  const int pieces = (what.columns * kValueBytes + 15) / 16;
  const std::int64_t begin =
      kValueBytes * (what.slice * from.slice + std::int64_t{what.first_row} * from.pitch + what.first_column);
  const std::int64_t pitch = std::int64_t{from.pitch} * kValueBytes;
  const auto place = [&](int piece) { return begin + piece / pieces * pitch + piece % pieces * 16; };
  constexpr int kAtOnce = 4;  // loads that are asked for before the first is stored
#pragma unroll 1
  for (int first = thread; first < pieces * what.rows; first += kAtOnce * threads) {
    uint4 words[kAtOnce];
    std::int64_t at[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int piece = first + i * threads;
      at[i] = piece < pieces * what.rows ? place(piece) : -1;
      if (at[i] >= 0)
        words[i] =
            __ldcg(reinterpret_cast<const uint4*>(static_cast<const unsigned char*>(from.values) + at[i]));
    }
#pragma unroll 1
    for (int peer = 0; peer < a.ranks.peers; ++peer) {
      auto* values = static_cast<unsigned char*>(to.values[peer]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (at[i] >= 0) __stcg(reinterpret_cast<uint4*>(values + at[i]), words[i]);
    }
  }
}

}  // namespace headroom::tiled
