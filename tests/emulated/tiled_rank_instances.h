// What the tests of several ranks ask for, of each format.
#pragma once

#include "tiled_instances.h"

namespace headroom::emulated {

inline constexpr TiledInstance kRankInstances[] = {
    {0, Activation::kRelu, Loss::kCrossEntropy, 0, true},
    {0, Activation::kRelu, Loss::kCrossEntropy, 2, true},
    {0, Activation::kRelu, Loss::kMeanSquaredError, 2, true},
    {0, Activation::kTanh, Loss::kCrossEntropy, 1, true},
    {2, Activation::kRelu, Loss::kCrossEntropy, 0, true},
};

}  // namespace headroom::emulated
