#include "tiled_instances.h"

namespace headroom::emulated {
namespace {

constexpr TiledInstance kInstances[] = {
    {0, Activation::kRelu, Loss::kCrossEntropy, 0, true},
    {0, Activation::kRelu, Loss::kCrossEntropy, 2, true},
    {0, Activation::kRelu, Loss::kMeanSquaredError, 2, true},
    {0, Activation::kTanh, Loss::kCrossEntropy, 1, true},
    {2, Activation::kRelu, Loss::kCrossEntropy, 0, true},
};

}  // namespace

const void* tiled_ranks_instance(const tiled::KernelShape& shape) {
  if (shape.precision == Precision::kFp16)
    return tiled_instance<machine::Fp16, tiled::kTilings, kInstances>(shape);
  return tiled_instance<machine::Bf16, tiled::kTilings, kInstances>(shape);
}

}  // namespace headroom::emulated
