#include "device/peer_access.h"

#include <string>

#include "core/error.h"
#include "device/check.h"
#include "device/device.h"

namespace headroom {

void enable_peer_access(const std::vector<int>& devices) {
  for (const int device : devices) {
    use_device(device);
    bool is_named = false;
    for (const int peer : devices) {
      if (peer == device) {
        if (is_named) throw UnsupportedError("device " + std::to_string(device) + " is named twice");
        is_named = true;
        continue;
      }
      int can = 0;
      CUDA_CHECK(cudaDeviceCanAccessPeer(&can, device, peer));
      if (can == 0)
        throw UnsupportedError("device " + std::to_string(device) + " cannot reach the memory of device " +
                               std::to_string(peer) + " (no peer access)");
      const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
      if (code == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError();
      else
        CUDA_CHECK(code);
    }
  }
}

void require_peer_atomics(const std::vector<int>& devices) {
  for (const int device : devices)
    for (const int peer : devices) {
      if (peer == device) continue;
      int can = 0;
      CUDA_CHECK(cudaDeviceGetP2PAttribute(&can, cudaDevP2PAttrNativeAtomicSupported, device, peer));
      if (can == 0)
        throw UnsupportedError("device " + std::to_string(device) +
                               " cannot add to values in the memory of device " + std::to_string(peer) +
                               " (no native atomics between them)");
    }
}

}  // namespace headroom
