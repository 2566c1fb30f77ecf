// Products for large batches of wide networks in bf16; see wide.cuh.
#include "layered/wide.cuh"

namespace headroom::layered {

template class WideForward<Bf16>;
template class WideInputGradient<Bf16>;
template class WideWeightUpdate<Bf16>;

}  // namespace headroom::layered
