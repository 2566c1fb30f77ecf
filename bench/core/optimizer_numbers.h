// An optimizer's numbers by their names, for what reads and writes them: files, and the command line.
#pragma once

#include <array>
#include <string_view>

#include "core/workload.h"

namespace headroom {

/// What an optimizer's numbers are called in files.
inline constexpr std::array<std::string_view, 6> kOptimizerNumbers = {
    "learning_rate", "momentum", "beta1", "beta2", "epsilon", "weight_decay"};
/// The one of them that is called so; null where the optimizer's kind has none.
double* optimizer_number(Optimizer& optimizer, std::string_view name);
const double* optimizer_number(const Optimizer& optimizer, std::string_view name);

}  // namespace headroom
