// How every slice kernel begins: each thread makes its member and runs it.
#pragma once

#include "resident/slice_arguments.h"

namespace headroom::resident {

using namespace machine;

template <class Member>
__global__ void __launch_bounds__(Member::kThreadCount, 1)
    slice_steps(const __grid_constant__ SliceArguments arguments) {
  Member(arguments).run(arguments);
}

/// The kernel of such members, which was compiled for what `what_for` says.
template <class Member>
SliceKernel slice_kernel_of_members(SliceKernel what_for) {
  what_for.function = reinterpret_cast<const void*>(&slice_steps<Member>);
  what_for.threads = Member::kThreadCount;
  return what_for;
}

}  // namespace headroom::resident
