#include "tiled_instances.h"

namespace headroom::emulated {
namespace {

constexpr TiledInstance kInstances[] = {
    {0, Activation::kRelu, Loss::kCrossEntropy, 0},
    {0, Activation::kRelu, Loss::kCrossEntropy, 2},
    {0, Activation::kRelu, Loss::kMeanSquaredError, 0},
    {0, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {0, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {0, Activation::kTanh, Loss::kCrossEntropy, 0},
    {0, Activation::kTanh, Loss::kCrossEntropy, 2},
    {0, Activation::kTanh, Loss::kMeanSquaredError, 0},
    {0, Activation::kTanh, Loss::kMeanSquaredError, 2},
    {0, Activation::kSilu, Loss::kCrossEntropy, 0},
    {0, Activation::kSilu, Loss::kMeanSquaredError, 2},
    {0, Activation::kSilu, Loss::kBinaryCrossEntropy, 2},
    {0, Activation::kGelu, Loss::kMeanSquaredError, 0},
    {0, Activation::kGelu, Loss::kBinaryCrossEntropy, 1},
    {0, Activation::kGelu, Loss::kBinaryCrossEntropy, 2},
    {0, Activation::kElu, Loss::kCrossEntropy, 2},
    {0, Activation::kElu, Loss::kMeanSquaredError, 0},
    {0, Activation::kElu, Loss::kMeanSquaredError, 2},
    {1, Activation::kRelu, Loss::kCrossEntropy, 0},
    {1, Activation::kRelu, Loss::kCrossEntropy, 2},
    {1, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {1, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {1, Activation::kTanh, Loss::kCrossEntropy, 2},
    {1, Activation::kTanh, Loss::kMeanSquaredError, 2},
    {1, Activation::kElu, Loss::kMeanSquaredError, 0},
    {1, Activation::kElu, Loss::kMeanSquaredError, 2},
    {2, Activation::kRelu, Loss::kCrossEntropy, 0},
    {2, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {2, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {2, Activation::kElu, Loss::kMeanSquaredError, 0},
    {3, Activation::kRelu, Loss::kCrossEntropy, 0},
    {3, Activation::kRelu, Loss::kMeanSquaredError, 2},
    {3, Activation::kRelu, Loss::kBinaryCrossEntropy, 1},
    {3, Activation::kElu, Loss::kMeanSquaredError, 0},
};

}  // namespace

const void* tiled_portable_fp16_instance(const tiled::KernelShape& shape) {
  return tiled_instance<tiled::PortableFp16, tiled::kPortableTilings, kInstances>(shape);
}

}  // namespace headroom::emulated
