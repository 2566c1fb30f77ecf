// What the two kernels with whole sums in 16 bits whose warps of the chain have 16 rows do alike: that of a cluster
// (slice_whole.cuh) and that which divides rows (slice_rows.cuh).
#pragma once

#include "machine/masks.cuh"
#include "machine/matrices.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_step.cuh"
#include "resident/slice_whole_loss.cuh"

namespace headroom::resident {

/// The weights of a product of 16 rows over kPairs pairs of slices.
template <class Format, int kPairs>
struct WholeProduct {
  std::uint32_t weights[kPairs / 2][4];
};
/// bias + the sum over these pairs, in kChains chains of instructions that wait for each other.
template <int kChains, class Format, int kPairs>
MACHINE_DEVICE void multiply(float (&sum)[4], const uint4 (&tiles)[kPairs],
                             const WholeProduct<Format, kPairs>& product,
                             const float2& bias = make_float2(0, 0)) {
  float chain[kChains][4] = {{bias.x, bias.y, bias.x, bias.y}};
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const std::uint32_t* w = product.weights[i / 2] + 2 * (i % 2);
    Format::product(chain[i % kChains], tiles[i], w[0], w[1]);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c)
    sum[c] = kChains == 4 ? (chain[0][c] + chain[1][c]) + (chain[2 % kChains][c] + chain[3 % kChains][c])
                          : chain[0][c] + chain[1][c];
}

template <class Format, template <class, int> class ExchangeOf, int kPairs, int kTeam>
class SliceWholeSums : protected SliceMember<Format, ExchangeOf, kPairs, 4, kTeam> {
  using Base = SliceMember<Format, ExchangeOf, kPairs, 4, kTeam>;

 protected:
  using Base::Base, Base::lane_;
  using typename Base::Arguments;
  using typename Base::EarlyInputs;
  using typename Base::Fragments;
  using Own = typename Format::Own;

  // ---- eight warps that own masters

  /// A tile that lies row by row, transposed.
  MACHINE_DEVICE Own load_rows(const unsigned char* tile) const {
    Own own;
    load_matrices_transposed(tile + lane_ * 16, own.word);
    return own;
  }
  MACHINE_DEVICE Own load_own_gradient(const Arguments& a, int layer) const {
    return load_rows(Base::own_gradient(a, layer));
  }
  /// And the product of the next step, if there is one; kEarly of its pairs of rows are in registers.
  template <int kEarly>
  MACHINE_DEVICE void update_first_and_multiply(const Arguments& a, const EarlyInputs& columns,
                                                const Fragments (&rows)[kEarly]) {
    const typename Base::Owns own = {{load_own_gradient(a, 0)}};
    Base::clear_first_sums();
#pragma unroll
    for (int i = 0; i < Base::kInputs; ++i) {
      if (i == Base::kInputs - 1 && Base::input_pairs_ < Base::kInputs)
        break;  // as in most warps with 784 inputs
      Base::update_first_pair(a, i, columns[i], own);
      Base::multiply_first_pair(a, i, i < kEarly ? rows[i] : Base::load_row_inputs(a, i));
    }
  }

  // ---- a warp for what is small

  /// bias [8] += factor * the sum of a tile's rows
  MACHINE_DEVICE void update_bias(const Arguments& a, float* bias, const Own& gradient) const {
    const float2 sum = Format::sum_of_rows(gradient);
    if (lane_ >= 4) return;
    float2& two = reinterpret_cast<float2*>(bias)[lane_];
    two = make_float2(fmaf(a.update_factor, sum.x, two.x), fmaf(a.update_factor, sum.y, two.y));
  }

  // ---- warps that are the chain

  /// Values of columns 2t and 2t + 1: of row g of the warp's 16, and of row g + 8.
  struct Two {
    std::uint32_t upper, lower;
  };
  MACHINE_DEVICE static Two hidden(const float (&sum)[4]) {
    return {Format::pack(relu(sum[0]), relu(sum[1])), Format::pack(relu(sum[2]), relu(sum[3]))};
  }
  MACHINE_DEVICE static Two masked(const float (&sum)[4], const Two& hidden) {
    return {Format::pack(sum[0], sum[1]) & Format::positive(hidden.upper),
            Format::pack(sum[2], sum[3]) & Format::positive(hidden.lower)};
  }
  /// The 16 bytes of a tile that this lane publishes, and the lane 16 further: four columns of two rows.
  MACHINE_DEVICE uint4 packet_of(const Two& two) const {
    const int from = 2 * (lane_ & 15);
    return make_uint4(shuffle_from(two.upper, from), shuffle_from(two.lower, from),
                      shuffle_from(two.upper, from + 1), shuffle_from(two.lower, from + 1));
  }
};

}  // namespace headroom::resident
