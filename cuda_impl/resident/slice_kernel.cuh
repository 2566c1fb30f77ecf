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

}  // namespace headroom::resident
