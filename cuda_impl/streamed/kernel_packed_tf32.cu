// The streamed step in tf32 with joined logits and packed activations, a kernel for each kind of panels.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_packed_tf32(int panels, bool held, bool keeps_first_masters) {
  if (panels == 2) return held ? kernel_of<HeldFirstKeptPackedTf32, 1, 2>() : kernel_of<PackedTf32, 1, 2>();
  if (keeps_first_masters) return kernel_of<FirstKeptPackedTf32, 1, 1>();
  return held ? kernel_of<HeldPackedTf32, 1, 1>() : kernel_of<PackedTf32, 1, 1>();
}

}  // namespace headroom::streamed
