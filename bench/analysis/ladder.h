// Where the time of an eager step goes: what is saved from one way of running the step to the next, down to the floor.
//
// The terms add up: pytorch-eager less all of them is the floor. What comes out negative or inside the noise is kept and
// called so. Pure functions over the records of one file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/record.h"

namespace headroom {

/// Terms in order, those included that cannot be known:
///   python    pytorch-eager    -> libtorch-eager                Python itself
///   dispatch  libtorch-eager   -> fastest whole-step graph      operators' dispatch and launches
///   fusion    that graph       -> fastest of libtorch-expert and pytorch-compile-graph: fewer kernels, less traffic
///   choice    that row         -> best PyTorch, where that is yet another row
///   kernels   best PyTorch     -> best of ours
///   left      best of ours     -> floor
Ladder make_ladder(const std::vector<Record>& records, const std::string& workload, Precision precision,
                   const std::optional<Floor>& floor);

/// "274 us", "1.2 us (noise)", "-3.4 us (negative)"; empty if it is not known.
std::string term_text(const LadderTerm& term);

}  // namespace headroom
