// What a warp's lanes exchange, where the CPU plays the GPU.
#pragma once

#include "machine.h"

namespace headroom::emulated {

/// Every lane gets result(what all lanes gave, its own number).
template <class Value, class Result>
Value of_all_lanes(const char* instruction, const Value& value, const Result& result) {
  struct Mine {
    Value given, got;
  } mine{value, {}};
  with_warp(instruction, mine, [&](Mine* const* lanes) {
    Value given[kWarp];
    for (int i = 0; i < kWarp; ++i) given[i] = lanes[i]->given;
    for (int i = 0; i < kWarp; ++i) lanes[i]->got = result(given, i);
  });
  return mine.got;
}

inline void warp_sync() {
  of_all_lanes("warp_sync", 0, [](const int*, int) { return 0; });
}

/// What lane `from` gave; lanes may ask for different ones.
template <class Value>
Value shuffle(const Value& value, int from) {
  struct Mine {
    Value value;
    int from;
  };
  return of_all_lanes("shuffle", Mine{value, from},
                      [](const Mine* given, int i) { return Mine{given[given[i].from % kWarp].value, 0}; })
      .value;
}
template <class Value>
Value shuffle_xor(const Value& value, int mask) {
  return shuffle(value, lane() ^ mask);
}

}  // namespace headroom::emulated
