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

const void* tiled_portable_ranks_instance(const tiled::KernelShape& shape) {
  if (shape.precision == Precision::kFp32)
    return tiled_instance<tiled::PortableFp32, tiled::kPlainTilings, kInstances>(shape);
  return tiled_instance<tiled::PortableTf32, tiled::kPortableTilings, kInstances>(shape);
}

}  // namespace headroom::emulated
