// What is compiled at set-up on a GPU is instantiated here, in a file for each format.
#include "tiled_kernels.h"

#include "runtime.h"
#include "tiled/arguments.h"
#include "tiled_instances.h"

namespace headroom::emulated {
namespace {

const void* function_of(const tiled::KernelShape& shape) {
  const bool portable = shape.tiling.portable;
  if (shape.rules.ranked)
    return portable ? tiled_portable_ranks_instance(shape) : tiled_ranks_instance(shape);
  switch (shape.precision) {
    case Precision::kFp32:
      return tiled_fp32_instance(shape);
    case Precision::kTf32:
      return portable ? tiled_tf32_instance(shape) : tiled_wgmma_tf32_instance(shape);
    case Precision::kFp16:
      return portable ? tiled_portable_fp16_instance(shape) : tiled_fp16_instance(shape);
    case Precision::kBf16:
      return portable ? tiled_portable_bf16_instance(shape) : tiled_bf16_instance(shape);
  }
  throw std::logic_error("tiled_kernel: not a Precision");
}

}  // namespace

jit::ReadyKernel tiled_kernel(const tiled::KernelShape& shape) {
  return {.function = function_of(shape),
          .was_kept = false,
          .note = "its kernel is an instance of the tests",
          .code = nullptr};
}

std::function<void()> call_of(const void* kernel, const void* argument) {
  return call_with<tiled::Arguments>(kernel, argument);
}

}  // namespace headroom::emulated
