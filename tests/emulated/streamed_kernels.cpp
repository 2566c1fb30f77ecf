// What is compiled at set-up on a GPU is instantiated here.
#include "intrinsics.h"
// What CUDA C++ has without asking comes first.
#include "core/error.h"
#include "runtime.h"
#include "streamed/step.cuh"
#include "streamed_instances.h"

namespace headroom::emulated {
namespace {

using namespace streamed;

struct Instance {
  const char* format;
  int groups, panels;
  const void* function;
};
#define INSTANCE(Format, kGroups, kPanels) {#Format, kGroups, kPanels, kernel_of<Format, kGroups, kPanels>()}
const Instance kInstances[] = {INSTANCE(Fp32, kMostGroups, 0),
                               INSTANCE(Fp32, 1, 0),
                               INSTANCE(HeldFp32, 1, 0),
                               INSTANCE(Tf32, kMostGroups, 0),
                               INSTANCE(Tf32, 1, 0),
                               INSTANCE(Tf32, 1, 1),
                               INSTANCE(HeldTf32, 1, 0),
                               INSTANCE(FirstKeptTf32, 1, 1),
                               INSTANCE(PackedTf32, 1, 1),
                               INSTANCE(PackedTf32, 1, 2),
                               INSTANCE(HeldPackedTf32, 1, 1),
                               INSTANCE(FirstKeptPackedTf32, 1, 1),
                               INSTANCE(HeldFirstKeptPackedTf32, 1, 2),
                               INSTANCE(Fp16, kMostGroups, 0),
                               INSTANCE(Fp16, 1, 0),
                               INSTANCE(Fp16, 1, 1),
                               INSTANCE(HeldFp16, 1, 0),
                               INSTANCE(FirstKeptFp16, 1, 1),
                               INSTANCE(HeldFirstKeptFp16, 1, 2),
                               INSTANCE(Bf16, kMostGroups, 0),
                               INSTANCE(Bf16, 1, 0),
                               INSTANCE(KeptBf16, 1, 1),
                               INSTANCE(HeldBf16, 1, 0),
                               INSTANCE(PartlyKeptBf16, 1, 2)};
#undef INSTANCE

const void* function_of(const KernelShape& shape) {
  if (shape.rule) return streamed_slot_kernel(shape);
  for (const Instance& one : kInstances)
    if (one.format == shape.format && one.groups == shape.groups && one.panels == shape.panels)
      return one.function;
  throw std::logic_error("no " + kernel_name(shape) + " among the instances of tests/emulated");
}

}  // namespace

jit::ReadyKernel streamed_kernel(const KernelShape& shape) {
  return {.function = function_of(shape),
          .was_kept = false,
          .note = "its kernel is an instance of the tests",
          .code = nullptr};
}

std::function<void()> call_of(const void* kernel, const void* argument) {
  return call_with<Arguments>(kernel, argument);
}

}  // namespace headroom::emulated
