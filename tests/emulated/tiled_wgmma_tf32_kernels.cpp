#include "tiled_instances.h"

namespace headroom::emulated {
namespace {

constexpr TiledInstance kInstances[] = {
    {0, Activation::kElu, Loss::kBinaryCrossEntropy, 1},
    {0, Activation::kElu, Loss::kMeanSquaredError, 0},
    {0, Activation::kElu, Loss::kMeanSquaredError, 2},
    {0, Activation::kGelu, Loss::kBinaryCrossEntropy, 1},
    {0, Activation::kGelu, Loss::kBinaryCrossEntropy, 2},
    {0, Activation::kGelu, Loss::kCrossEntropy, 0},
    {0, Activation::kGelu, Loss::kMeanSquaredError, 0},
    {0, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {0, Activation::kRelu, Loss::kBinaryCrossEntropy, 2},
    {0, Activation::kRelu, Loss::kCrossEntropy, 0},
    {0, Activation::kRelu, Loss::kCrossEntropy, 2},
    {0, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {0, Activation::kSilu, Loss::kCrossEntropy, 2},
    {0, Activation::kSilu, Loss::kMeanSquaredError, 2},
    {0, Activation::kTanh, Loss::kBinaryCrossEntropy, 1},
    {0, Activation::kTanh, Loss::kCrossEntropy, 0},
    {0, Activation::kTanh, Loss::kCrossEntropy, 1},
    {0, Activation::kTanh, Loss::kCrossEntropy, 2},
    {0, Activation::kTanh, Loss::kMeanSquaredError, 0},
    {1, Activation::kElu, Loss::kMeanSquaredError, 0},
    {1, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {1, Activation::kRelu, Loss::kCrossEntropy, 0},
    {1, Activation::kRelu, Loss::kCrossEntropy, 2},
    {1, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {1, Activation::kSilu, Loss::kMeanSquaredError, 2},
    {2, Activation::kElu, Loss::kMeanSquaredError, 0},
    {2, Activation::kElu, Loss::kMeanSquaredError, 2},
    {2, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {2, Activation::kRelu, Loss::kCrossEntropy, 0},
    {2, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {2, Activation::kSilu, Loss::kMeanSquaredError, 2},
    {2, Activation::kTanh, Loss::kCrossEntropy, 2},
};

}  // namespace

const void* tiled_wgmma_tf32_instance(const tiled::KernelShape& shape) {
  return tiled_instance<tiled::Tf32, tiled::kTf32Tilings, kInstances>(shape);
}

}  // namespace headroom::emulated
