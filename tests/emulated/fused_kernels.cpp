#include "intrinsics.h"
// What CUDA C++ has without asking comes first.
#include <algorithm>

#include "fused/kernels.h"
#include "fused_kernels.h"
#include "machine/formats.cuh"
#include "runtime.h"

namespace headroom::emulated {
namespace {

/// Kernels have one parameter, a struct passed by value. By the x86-64 ABI it lies on the stack, where a kernel looks at the first bytes of this
/// one; the trainer holds both kinds, so that as many bytes can be read.
struct AnyArguments {
  alignas(16) unsigned char bytes[std::max(sizeof(fused::ChainArguments), sizeof(fused::PipelineArguments))];
};
static_assert(alignof(fused::ChainArguments) <= 16 && alignof(fused::PipelineArguments) <= 16);

}  // namespace

jit::ReadyKernel fused_kernel(const fused::Plan& plan, Precision precision) {
  return {.function = precision == Precision::kBf16 ? fused_instance<machine::Bf16>(plan)
                                                    : fused_instance<machine::Fp16>(plan),
          .was_kept = false,
          .note = "its kernel is an instance of the tests",
          .code = nullptr};
}

std::function<void()> call_of(const void* kernel, const void* argument) {
  return call_with<AnyArguments>(kernel, argument);
}

}  // namespace headroom::emulated
