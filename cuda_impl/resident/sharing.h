// How thread blocks share the slices of a network: what tests ask for and the slice kernel is compiled for.
#pragma once

namespace headroom::resident {

/// `team` thread blocks own `own` slices of every hidden layer together.
struct Sharing {
  int team, own;
};

}  // namespace headroom::resident
