#include "oracle/wide_state.h"

#include <algorithm>
#include <span>

#include "core/parallel.h"
#include "core/training_rules.h"

namespace headroom {
namespace {

constexpr std::int64_t kElementsChunk = 1 << 15;  // worth waking a thread for

void subtract(const Values& other, Values& values) {
  parallel_for(static_cast<std::int64_t>(values.size()), kElementsChunk,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) values[i] -= other[i];
               });
}

template <int kSlots>
void update_each(const rules::OptimizerStep& rule, const Values& gradient, WideState& state) {
  double *values = state.parameters.data(), *slots[2] = {};
  for (int slot = 0; slot < kSlots; ++slot) slots[slot] = state.slots[slot].data();
  double *const first = slots[0], *const second = slots[1];
  parallel_for(static_cast<std::int64_t>(gradient.size()), kElementsChunk,
               [=, gradients = gradient.data()](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   rules::Parameter one{.value = values[i]};
                   if (kSlots > 0) one.slots[0] = first[i];
                   if (kSlots > 1) one.slots[1] = second[i];
                   rules::update(rule, gradients[i], one);
                   values[i] = one.value;
                   if (kSlots > 0) first[i] = one.slots[0];
                   if (kSlots > 1) second[i] = one.slots[1];
                 }
               });
}

}  // namespace

void widen(const Parameters& parameters, Values& values) {
  const std::span<const float> flat = parameters.flat();
  values.resize(flat.size());
  parallel_for(static_cast<std::int64_t>(flat.size()), kElementsChunk,
               [&](std::int64_t begin, std::int64_t end) {
                 std::copy(flat.begin() + begin, flat.begin() + end, values.begin() + begin);
               });
}

WideState widened(const State& state) {
  WideState wide{{}, std::vector<Values>(state.slots.size())};
  widen(state.parameters, wide.parameters);
  for (std::size_t slot = 0; slot < state.slots.size(); ++slot) widen(state.slots[slot], wide.slots[slot]);
  return wide;
}

Parameters rounded(const std::vector<int>& widths, const Values& values) {
  Parameters result = Parameters::unset(widths);
  const std::span<float> flat = result.flat();
  parallel_for(static_cast<std::int64_t>(values.size()), kElementsChunk,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) flat[i] = static_cast<float>(values[i]);
               });
  return result;
}

State rounded(const std::vector<int>& widths, const WideState& wide) {
  State state{rounded(widths, wide.parameters), {}};
  for (const Values& slot : wide.slots) state.slots.push_back(rounded(widths, slot));
  return state;
}

void update(const Optimizer& optimizer, std::int64_t step, const Values& gradient, WideState& state) {
  const rules::OptimizerStep rule = rules::at_step(optimizer, static_cast<double>(step));
  switch (state.slots.size()) {
    case 0:
      return update_each<0>(rule, gradient, state);
    case 1:
      return update_each<1>(rule, gradient, state);
    default:
      return update_each<2>(rule, gradient, state);
  }
}

void subtract(const WideState& other, WideState& state) {
  subtract(other.parameters, state.parameters);
  for (std::size_t slot = 0; slot < state.slots.size(); ++slot)
    subtract(other.slots[slot], state.slots[slot]);
}

}  // namespace headroom
