// Prints what stores between devices 0 and 1 take. For work on the kernels only.
#include <cstdio>

#include "calibration/links.h"
#include "step_time.h"

int main() {
  using namespace headroom::calibration;
  return headroom::run_program("links_times", [] {
    if (const auto missing = no_peer_access(0, 1)) return std::printf("%s\n", missing->c_str()), 0;
    for (const int from : {0, 1})
      std::printf("stores of device %d: %.1f GB/s\n", from, 1e-9 * link_store_rate(from, 1 - from, 1 << 28));
    std::printf("there and back: %.3f us\n", 1e6 * link_round_trip_seconds(0, 1, 10000));
    return 0;
  });
}
