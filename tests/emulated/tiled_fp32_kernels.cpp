#include "tiled_instances.h"

namespace headroom::emulated {
namespace {

constexpr TiledInstance kInstances[] = {
    {0, Activation::kRelu, Loss::kCrossEntropy, 0},
    {0, Activation::kRelu, Loss::kCrossEntropy, 2},
    {0, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {0, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {0, Activation::kRelu, Loss::kBinaryCrossEntropy, 2},
    {0, Activation::kTanh, Loss::kCrossEntropy, 0},
    {0, Activation::kTanh, Loss::kCrossEntropy, 1},
    {0, Activation::kTanh, Loss::kCrossEntropy, 2},
    {0, Activation::kTanh, Loss::kMeanSquaredError, 0},
    {0, Activation::kTanh, Loss::kBinaryCrossEntropy, 1},
    {0, Activation::kSilu, Loss::kCrossEntropy, 2},
    {0, Activation::kSilu, Loss::kMeanSquaredError, 2},
    {0, Activation::kGelu, Loss::kCrossEntropy, 0},
    {0, Activation::kGelu, Loss::kBinaryCrossEntropy, 1},
    {0, Activation::kGelu, Loss::kBinaryCrossEntropy, 2},
    {0, Activation::kElu, Loss::kMeanSquaredError, 0},
    {0, Activation::kElu, Loss::kMeanSquaredError, 2},
    {0, Activation::kElu, Loss::kBinaryCrossEntropy, 1},
    {1, Activation::kRelu, Loss::kCrossEntropy, 0},
    {1, Activation::kRelu, Loss::kCrossEntropy, 2},
    {1, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {1, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {1, Activation::kTanh, Loss::kCrossEntropy, 1},
    {1, Activation::kTanh, Loss::kMeanSquaredError, 0},
    {1, Activation::kTanh, Loss::kBinaryCrossEntropy, 1},
    {1, Activation::kSilu, Loss::kCrossEntropy, 2},
    {1, Activation::kSilu, Loss::kMeanSquaredError, 2},
    {1, Activation::kGelu, Loss::kBinaryCrossEntropy, 2},
    {1, Activation::kElu, Loss::kMeanSquaredError, 0},
    {1, Activation::kElu, Loss::kMeanSquaredError, 2},
    {1, Activation::kElu, Loss::kBinaryCrossEntropy, 1},
    {2, Activation::kRelu, Loss::kCrossEntropy, 0},
    {2, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {2, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {2, Activation::kElu, Loss::kMeanSquaredError, 0},
    {3, Activation::kRelu, Loss::kCrossEntropy, 0},
    {3, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {3, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {3, Activation::kElu, Loss::kMeanSquaredError, 0},
    {4, Activation::kRelu, Loss::kCrossEntropy, 0},
    {4, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {4, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {4, Activation::kElu, Loss::kMeanSquaredError, 0},
};

}  // namespace

const void* tiled_fp32_instance(const tiled::KernelShape& shape) {
  return tiled_instance<tiled::PortableFp32, tiled::kPlainTilings, kInstances>(shape);
}

}  // namespace headroom::emulated
