// Where a layer's weights and biases lie in the flat parameters.
#pragma once

#include <cstdint>

namespace headroom::resident {

/// Fills `weight_begin` and `bias_begin` of a plan from its `widths`: layer after layer, weights [outputs, inputs], then biases.
template <class Plan>
void place_parameters(Plan& plan, int layers) {
  std::int64_t parameter = 0;
  for (int layer = 0; layer < layers; ++layer) {
    plan.weight_begin[layer] = parameter;
    parameter += std::int64_t{plan.widths[layer]} * plan.widths[layer + 1];
    plan.bias_begin[layer] = parameter;
    parameter += plan.widths[layer + 1];
  }
}

}  // namespace headroom::resident
