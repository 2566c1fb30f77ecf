// An optimizer with slots: its fp32 states of a weight stream with the weight, and its rule is applied while both are in registers.
//
// Nobody reads a state but the warp that updates its weight. So a slot has a tile of 1024 bytes for each tile of masters, in the
// order in which a lane has the gradients of its weights, and no product dictates another.
//   a stage of a warp's ring: masters | gradients or inputs | tiles of the first slot | tiles of the second
// Biases have their states beside them, one array a slot.
#pragma once

#include "machine/compiler.cuh"
#include "machine/copy.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/roots.cuh"
#include "machine/thread.cuh"
#include "rules/optimizer.cuh"
#include "streamed/arguments.h"
#include "streamed/tiles.cuh"

namespace headroom::streamed {

inline constexpr int kSlotTileBytes = kTileSide * kTileSide * 4;

// ---- rules: `gradient` is that of the mean loss

/// What of a rule changes from step to step, worked out once a step from the factors of that step.
struct StepNumbers {
  float first, second;
};

struct Momentum {
  static constexpr int kSlots = 1;
  MACHINE_DEVICE static StepNumbers of_step(const rules::UpdateFactors& factors) { return {factors.rate, 0}; }
  MACHINE_DEVICE static void apply(rules::UpdateFactors factors, const StepNumbers& numbers, float gradient,
                                   float& value, float (&states)[1]) {
    factors.rate = numbers.first;
    rules::update_with_momentum(factors, gradient, value, states[0]);
  }
};

/// Without a decay, in 8 instructions where rules::update_adam() takes 22. A state moves by a share of its distance, the learning rate is
/// in the denominator, and root and quotient are the machine's approximations, to a few units in the last place, which take subnormal
/// values for zeros: a root below 1e-19 is next to nothing beside an epsilon of kLeastEpsilon.
struct Adam {
  static constexpr int kSlots = 2;
  /// Of a learning rate so small that the step would not be seen the reciprocal stays finite.
  static constexpr float kMost = 0x1p120f;
  MACHINE_DEVICE static StepNumbers of_step(const rules::UpdateFactors& factors) {
    return {-fminf(factors.inverse_root / factors.rate, kMost),
            -fminf(factors.epsilon / factors.rate, kMost)};
  }
  MACHINE_DEVICE static void apply(const rules::UpdateFactors& factors, const StepNumbers& numbers,
                                   float gradient, float& value, float (&states)[2]) {
    move_states(factors, gradient, states);
    value = fmaf(states[0], reciprocal(fmaf(square_root(states[1]), numbers.first, numbers.second)), value);
  }
  MACHINE_DEVICE static void move_states(const rules::UpdateFactors& factors, float gradient,
                                         float (&states)[2]) {
    states[0] = fmaf(factors.take_first, gradient - states[0], states[0]);
    states[1] = fmaf(factors.take_second, fmaf(gradient, gradient, -states[1]), states[1]);
  }
};
/// The same with a decay, or with any epsilon: no state is subnormal under the root.
struct AdamW : Adam {
  static constexpr float kUnderRoot = 0x1p24f, kOfRoot = 0x1p-12f;
  MACHINE_DEVICE static StepNumbers of_step(const rules::UpdateFactors& factors) {
    return {fminf(kOfRoot * factors.inverse_root / factors.rate, kMost),
            fmaxf(fminf(factors.epsilon / factors.rate, kMost), 0x1p-126f)};
  }
  MACHINE_DEVICE static void apply(const rules::UpdateFactors& factors, const StepNumbers& numbers,
                                   float gradient, float& value, float (&states)[2]) {
    move_states(factors, gradient, states);
    const float inverse =
        reciprocal(fmaf(square_root(states[1] * kUnderRoot), numbers.first, numbers.second));
    value -= fmaf(factors.decay, value, states[0] * inverse);
  }
};

/// Both by rules::update_adam(), for tf32: there the others have been timed on a GPU, but not tested.
struct PlainAdam {
  static constexpr int kSlots = 2;
  MACHINE_DEVICE static StepNumbers of_step(const rules::UpdateFactors& factors) {
    return {factors.rate, factors.inverse_root};
  }
  MACHINE_DEVICE static void apply(rules::UpdateFactors factors, const StepNumbers& numbers, float gradient,
                                   float& value, float (&states)[2]) {
    factors.rate = numbers.first, factors.inverse_root = numbers.second;
    rules::update_adam(factors, gradient, value, states[0], states[1]);
  }
};

/// A format whose weights are updated by a rule, and what the L2 is told:
///   0  nothing
///   1  states only pass; in 16 bits and tf32 a share of the masters' first parts is to be held, and the rest passes, too
///   2  the same with both parts; in fp32 a sixteenth of the masters' lines is to be held
template <class Base, class TheRule, int kHeld, Loss kTheLoss = Loss::kCrossEntropy>
struct WithSlots : Base {
  using Rule = TheRule;
  static constexpr Loss kLoss = kTheLoss;
  static constexpr int kHeldParts = kHeld;
  /// Fewer than without, as a tile takes three times the room in a ring.
  static constexpr int kPanelTiles = Base::kWalks ? 2 : 1;
};
template <class Format>
inline constexpr bool kHasSlots = requires { typename Format::Rule; };
/// Whether outputs are compared with fp32 targets, not with a label.
template <class Format>
MACHINE_DEVICE constexpr bool has_targets() {
  if constexpr (kHasSlots<Format>)
    return Format::kLoss != Loss::kCrossEntropy;
  else
    return false;
}
template <class Format>
MACHINE_DEVICE constexpr int slots_of() {
  if constexpr (kHasSlots<Format>)
    return Format::Rule::kSlots;
  else
    return 0;
}

/// What a step does to every parameter.
template <class TheRule>
struct StepRule {
  using Rule = TheRule;
  rules::UpdateFactors factors;
  StepNumbers numbers;
  float inverse_scale;  // of the loss
  bool updates;         // false: a launch's first look at the first layer
  MACHINE_DEVICE void apply(float gradient, float& value, float (&states)[Rule::kSlots]) const {
    Rule::apply(factors, numbers, gradient * inverse_scale, value, states);
  }
};

/// 16 bytes of states, which only pass through the L2 if it is told anything.
template <bool kTold>
MACHINE_DEVICE void ask_states(int place, const unsigned char* source) {
  if constexpr (kTold)
    copy_async16_evict_first(place, source);
  else
    copy_async16(place, global_address(source));
}
template <bool kTold>
MACHINE_DEVICE void store_states(unsigned char* address, uint4 states) {
  if constexpr (kTold)
    store_global16_evict_first(address, states);
  else
    store_global16(address, states);
}
/// Asks for the states of an item's tiles, from tile `tile` of all masters on, `tile_step` apart. `place`: this lane's in the ring.
template <class Format, int kTiles>
MACHINE_DEVICE void ask_slots(const Arguments& a, std::int64_t tile, std::int64_t tile_step, int place,
                              int lane) {
  // fp32's stages are counted in uniform registers, of which ptxas would make malformed instructions (machine/copy.cuh).
  if constexpr (Format::kWalks && Format::kHeldParts > 0) place = kept_by_lane(place);
#pragma unroll
  for (int s = 0; s < slots_of<Format>(); ++s)
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int byte = 0; byte < kSlotTileBytes; byte += 512)
        ask_states<(Format::kHeldParts > 0)>(
            place + (s * kTiles + u) * kSlotTileBytes + byte,
            a.slots[s] + (tile + u * tile_step) * kSlotTileBytes + byte + lane * 16);
}

/// The states of an item in a warp's ring and where they go back to, with the rule.
template <class Format>
struct ItemSlots {
  using Rule = typename Format::Rule;
  static constexpr int kSlots = Rule::kSlots;
  static constexpr bool kTold = Format::kHeldParts > 0;
  StepRule<Rule> step;
  unsigned char* stage;            // [slots][tiles of the item] in the ring
  unsigned char* to[kSlots];       // where the first tile's states go back to
  std::uint64_t distance[kSlots];  // fp32: bytes from the masters to the slot

  MACHINE_DEVICE ItemSlots(const Arguments& a, const StepRule<Rule>& its_step, unsigned char* its_stage,
                           std::int64_t tile)
      : step(its_step), stage(its_stage) {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      to[s] = a.slots[s] + tile * kSlotTileBytes;
      distance[s] = global_address(a.slots[s]) - global_address(a.masters.part[0]);
    }
  }

  /// Items of one tile, for tensor cores: change(next) goes through a lane's eight masters, whose new values are next(i, value, gradient).
  template <class Change>
  MACHINE_DEVICE void update_tile(int lane, const Change& change) const {
    if (!step.updates) return;
    float states[8][kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const Words words = words_of(load_shared16(stage + s * kSlotTileBytes + p * 512 + lane * 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) states[4 * p + i][s] = bits_to_float(words.word[i]);
      }
    change([&](int i, float value, float gradient) {
      step.apply(gradient, value, states[i]);
      return value;
    });
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        Words words;
#pragma unroll
        for (int i = 0; i < 4; ++i) words.word[i] = float_to_bits(states[4 * p + i][s]);
        store_states<kTold>(to[s] + p * 512 + lane * 16, vector_of(words));
      }
  }

  /// fp32: four neighbouring weights of a row, whose states lie at `place` in shared memory, the next slot's kTiles tiles further.
  template <int kTiles>
  MACHINE_DEVICE void update_row(int place, float4& values, const float (&gradient)[4],
                                 float4 (&states)[kSlots]) const {
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
      states[s] = load_shared_floats(static_cast<std::uint32_t>(place + s * (kTiles * kSlotTileBytes)));
    apply_to_four(values, gradient, states);
  }
  /// The weights to `address` of the masters, their states to the same place of the slots.
  template <bool kShareHeld, int kStates>
  MACHINE_DEVICE void store_row(const float4& values, const float4 (&states)[kStates],
                                std::uint64_t address) const {
    store_global_floats<kShareHeld>(address, values);
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
      store_states<kTold>(reinterpret_cast<unsigned char*>(address + distance[s]), bits_of(states[s]));
  }
  /// fp32: as update_row() of states `byte` bytes behind the first of the stage, and nothing is stored: `gradients` become the new weights.
  template <int kTiles>
  MACHINE_DEVICE void update_row_here(float4 (&states)[kSlots + 1], float (&gradients)[4], float4 values,
                                      int byte) const {
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
      states[s] = load_shared_floats(stage + s * (kTiles * kSlotTileBytes) + byte);
    if (step.updates) apply_to_four(values, gradients, states);
    gradients[0] = values.x, gradients[1] = values.y, gradients[2] = values.z, gradients[3] = values.w;
  }
  /// fp32: updated states from the ring to their place.
  template <int kTiles>
  MACHINE_DEVICE void copy_out(std::int64_t tile_step, int lane) const {
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
#pragma unroll
      for (int u = 0; u < kTiles; ++u)
#pragma unroll
        for (int byte = 0; byte < kSlotTileBytes; byte += 512)
          store_states<kTold>(to[s] + u * tile_step + byte + lane * 16,
                              load_shared16(stage + (s * kTiles + u) * kSlotTileBytes + byte + lane * 16));
  }

 private:
  template <int kStates>
  MACHINE_DEVICE void apply_to_four(float4& values, const float (&gradient)[4],
                                    float4 (&states)[kStates]) const {
    float value[4] = {values.x, values.y, values.z, values.w};
    float of_weight[4][kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      of_weight[0][s] = states[s].x, of_weight[1][s] = states[s].y;
      of_weight[2][s] = states[s].z, of_weight[3][s] = states[s].w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) step.apply(gradient[i], value[i], of_weight[i]);
    values = make_float4(value[0], value[1], value[2], value[3]);
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
      states[s] = make_float4(of_weight[0][s], of_weight[1][s], of_weight[2][s], of_weight[3][s]);
  }
  MACHINE_DEVICE static uint4 bits_of(float4 v) {
    return make_uint4(float_to_bits(v.x), float_to_bits(v.y), float_to_bits(v.z), float_to_bits(v.w));
  }
};
/// 0 for a factor of gradients.
template <class Update>
MACHINE_DEVICE constexpr int slots_of_update() {
  if constexpr (requires { Update::kSlots; })
    return Update::kSlots;
  else
    return 0;
}

/// The states of biases that one thread updates, asked for with their values. Without members where there are none, since arrays that
/// nobody uses give fp32 other machine code.
template <class Format, int kCount>
struct BiasStates {
  MACHINE_DEVICE BiasStates(const Arguments&, const float*, int) {}
};
template <class Format, int kCount>
  requires kHasSlots<Format>
struct BiasStates<Format, kCount> {
  static constexpr int kSlots = Format::Rule::kSlots;
  float states[kCount][kSlots];
  /// Of `bias` and those `step` further.
  MACHINE_DEVICE BiasStates(const Arguments& a, const float* bias, int step) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int s = 0; s < kSlots; ++s)
        states[i][s] = load_l2<true>(a.bias_slots[s] + (bias - a.biases) + i * step);
  }
  /// By one thread: bias i, whose value was `value`, behind the step.
  MACHINE_DEVICE void update(const Arguments& a, float* bias, int i,
                             const StepRule<typename Format::Rule>& rule, float gradient, float value) {
    rule.apply(gradient, value, states[i]);
    *bias = value;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) a.bias_slots[s][bias - a.biases] = states[i][s];
  }
};

}  // namespace headroom::streamed
