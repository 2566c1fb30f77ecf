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
  const char* kernel;
  const void* function;
};
#define INSTANCE(...) {#__VA_ARGS__, kernel_of<__VA_ARGS__>()}
const Instance kInstances[] = {INSTANCE(Fp32, 4, 0),
                               INSTANCE(Fp32, 1, 0),
                               INSTANCE(Placed<Fp32, Kept::kNothing, 2>, 1, 0),
                               INSTANCE(Tf32, 4, 0),
                               INSTANCE(Tf32, 1, 0),
                               INSTANCE(Tf32, 1, 1),
                               INSTANCE(Placed<Tf32, Kept::kNothing, 2>, 1, 0),
                               INSTANCE(Placed<Tf32, Kept::kFirstLayer, 0>, 1, 1),
                               INSTANCE(PackedTf32, 1, 1),
                               INSTANCE(PackedTf32, 1, 2),
                               INSTANCE(Placed<PackedTf32, Kept::kNothing, 2>, 1, 1),
                               INSTANCE(Placed<PackedTf32, Kept::kFirstLayer, 0>, 1, 1),
                               INSTANCE(Placed<PackedTf32, Kept::kFirstLayer, 2>, 1, 2),
                               INSTANCE(Fp16, 4, 0),
                               INSTANCE(Fp16, 1, 0),
                               INSTANCE(Fp16, 1, 1),
                               INSTANCE(Placed<Fp16, Kept::kNothing, 2>, 1, 0),
                               INSTANCE(Placed<Fp16, Kept::kFirstLayer, 0>, 1, 1),
                               INSTANCE(Placed<Fp16, Kept::kFirstLayer, 2>, 1, 2),
                               INSTANCE(Bf16, 4, 0),
                               INSTANCE(Bf16, 1, 0),
                               INSTANCE(Placed<Bf16, Kept::kLowerHalves, 0>, 1, 1),
                               INSTANCE(Placed<Bf16, Kept::kNothing, 1>, 1, 0),
                               INSTANCE(Placed<Bf16, Kept::kLowerHalves, 1>, 1, 2)};
#undef INSTANCE

const void* function_of(const KernelShape& shape) {
  if (shape.rule) return streamed_slot_kernel(shape);
  const std::string kernel = short_name(shape);
  for (const Instance& one : kInstances)
    if (one.kernel == kernel) return one.function;
  throw std::logic_error("no " + kernel + " among the instances of tests/emulated");
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
