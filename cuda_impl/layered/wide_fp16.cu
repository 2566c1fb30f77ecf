// Products for large batches of wide networks in fp16; see wide.cuh.
#include "layered/wide.cuh"

namespace headroom::layered {

template class WideForward<Fp16>;
template class WideInputGradient<Fp16>;
template class WideWeightUpdate<Fp16>;

}  // namespace headroom::layered
