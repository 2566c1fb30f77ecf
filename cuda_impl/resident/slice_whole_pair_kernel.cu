// Whole sums in clusters with two slices a thread block, in 16 bits.
#include "resident/slice_whole_pair.cuh"

namespace headroom::resident {
namespace {

template <class Format>
SliceKernel of_clusters(int clusters) {
  return clusters == 1 ? slice_whole_pair_kernel_of<Format, 1>()
                       : slice_whole_pair_kernel_of<Format, WholePair::kMostClusters>();
}

}  // namespace

SliceKernel slice_whole_pair_kernel(Precision precision, int clusters) {
  return precision == Precision::kFp16 ? of_clusters<SliceFp16>(clusters) : of_clusters<SliceBf16>(clusters);
}

}  // namespace headroom::resident
