// One bit a value, whether it is positive: what a backward pass through ReLU keeps of its forward pass.
#pragma once

#include <cstdint>

#include "machine/bits.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

/// Up to 16 registers of pairs a word, the first pair in the highest bits of both halves that are used.
template <int kPairs>
struct Mask {
  static constexpr int kWords = (kPairs + 15) / 16;
  std::uint32_t word[kWords];
};

/// No half of `held` is negative, so the smaller of it and 1 is whether it is positive.
template <int kPairs>
MACHINE_DEVICE Mask<kPairs> positive(const std::uint32_t (&held)[kPairs]) {
  Mask<kPairs> mask{};
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    std::uint32_t& word = mask.word[i / 16];
    word = word + word + __vminu2(held[i], 0x00010001u);
  }
  return mask;
}

/// held = sums where the mask is set, else 0. A shift brings two pairs' bits to the tops of bytes.
template <class Format, int kPairs>
MACHINE_DEVICE void masked(const float (&sums)[2 * kPairs], const Mask<kPairs>& mask,
                           std::uint32_t (&held)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const std::uint32_t tops = mask.word[i / 16] << (i % 8);
    const bool upper = kPairs >= 16 && i % 16 < 8;
    held[i] = Format::pack(sums[2 * i], sums[2 * i + 1]) &
              (upper ? spread_tops<true>(tops) : spread_tops<false>(tops));
  }
}

/// held = sums where `activations` are positive, else 0.
template <class Format, int kPairs>
MACHINE_DEVICE void masked_by(const float (&sums)[2 * kPairs], const std::uint32_t (&activations)[kPairs],
                              std::uint32_t (&held)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    held[i] = Format::pack(sums[2 * i], sums[2 * i + 1]) & Format::positive(activations[i]);
}

}  // namespace headroom::machine
