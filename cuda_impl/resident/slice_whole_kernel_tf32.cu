// Whole sums in teams, in tf32.
#include "resident/slice_whole_team.cuh"

namespace headroom::resident {

SliceKernel slice_whole_kernel_tf32() { return slice_whole_team_kernel_of<SliceTf32>(); }

}  // namespace headroom::resident
