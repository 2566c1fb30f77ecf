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
  parallel_for(static_cast<std::int64_t>(gradient.size()), kElementsChunk,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   rules::Parameter one{.value = state.parameters[i]};
                   for (std::size_t slot = 0; slot < state.slots.size(); ++slot)
                     one.slots[slot] = state.slots[slot][i];
                   rules::update(rule, gradient[i], one);
                   state.parameters[i] = one.value;
                   for (std::size_t slot = 0; slot < state.slots.size(); ++slot)
                     state.slots[slot][i] = one.slots[slot];
                 }
               });
}

void subtract(const WideState& other, WideState& state) {
  subtract(other.parameters, state.parameters);
  for (std::size_t slot = 0; slot < state.slots.size(); ++slot)
    subtract(other.slots[slot], state.slots[slot]);
}

}  // namespace headroom
