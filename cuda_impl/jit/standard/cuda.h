// In place of the driver's header, for NVRTC: what the host describes a tensor by, of which device code takes the address.
#pragma once

struct alignas(64) CUtensorMap {
  unsigned long long opaque[16];
};
