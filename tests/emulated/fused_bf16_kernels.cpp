#include "fused_instances.h"

namespace headroom::emulated {

template const void* fused_instance<machine::Bf16>(const fused::Plan&);

}  // namespace headroom::emulated
