// Networks with a division of their work each, for the tests of the kernel for narrow networks. As constants, so that the GPU that the
// CPU plays has a kernel compiled for each of them.
#pragma once

#include <string_view>

#include "narrow/plan.h"

namespace headroom::narrow {

inline constexpr Limits kH200{.sm_count = 132, .shared_bytes = 232448};

/// A workload's name (core/workload.h) and, where blocks > 0, how its work is divided; else make_plan() says so.
struct Case {
  std::string_view name;
  int blocks = 0, strips = 1, team = 8, is_clustered = 0, tall = 1, sums_in_memory = 0;
  int row_parts = 1, sum_tall = 1;
};
inline constexpr Case kCases[] = {
    {"mlp-17x64x64x6-b64-tanh-mse-adam"},
    {"mlp-3x50x50x1-b100-silu-mse-adamw", 3, 2, 4, 0, 1, 0, 2, 2},
    {"mlp-20x33x7-b70", 1, 2, 5},
    {"mlp-10x20x33x7-b70-tanh-momentum0.9", 2, 1, 8, 0, 1, 1},
    {"mlp-9x5-b31-bce-momentum0.9"},
    {"mlp-8x24x16x40x9x5-b70-elu-adam", 2, 2, 4, 1, 1, 0, 1, 2},
    {"mlp-12x70x128x10-b48-gelu-bce"},
    {"mlp-5x6x7x8x9x10x11x12x13x14x3-b130-mse-adam", 2, 4, 2, 0, 2, 0, 2, 1},
};

/// What such a name says is trained; of the optimizer only its slots count.
constexpr Plan trained_plan(std::string_view name, Precision precision) {
  Plan plan{};
  plan.precision = static_cast<int>(precision);
  std::size_t at = 4;  // behind "mlp-"
  const auto number = [&] {
    int value = 0;
    for (; at < name.size() && name[at] >= '0' && name[at] <= '9'; ++at)
      value = 10 * value + (name[at] - '0');
    return value;
  };
  plan.widths[0] = number();
  while (name[at] == 'x') {
    ++at;
    plan.widths[++plan.layers] = number();
  }
  at += 2;  // "-b"
  plan.batch = number();
  const std::string_view rules = name.substr(at);
  const auto has = [&](std::string_view word) { return rules.find(word) != rules.npos; };
  plan.activation = static_cast<int>(has("-tanh")   ? Activation::kTanh
                                     : has("-silu") ? Activation::kSilu
                                     : has("-gelu") ? Activation::kGelu
                                     : has("-elu")  ? Activation::kElu
                                                    : Activation::kRelu);
  plan.loss = static_cast<int>(has("-mse")   ? Loss::kMeanSquaredError
                               : has("-bce") ? Loss::kBinaryCrossEntropy
                                             : Loss::kCrossEntropy);
  plan.slots = has("-adam") ? 2 : has("-momentum") ? 1 : 0;
  return plan;
}
constexpr Plan plan_of_case(const Case& of, Precision precision) {
  Plan plan = trained_plan(of.name, precision);
  if (of.blocks == 0) return make_plan(plan, kH200);
  plan.blocks = of.blocks, plan.strips = of.strips, plan.team = of.team;
  plan.is_clustered = of.is_clustered, plan.sums_in_memory = of.sums_in_memory;
  plan.row_parts = of.row_parts, plan.sum_tall = of.sum_tall;
  plan.tall = precision == Precision::kFp32 ? of.tall : 1;
  return plan;
}

}  // namespace headroom::narrow
