// One network on several devices: a trainer for each rank, and a host thread for each.
//
// A thread for each, since launching a graph with a collective in it may wait for the other ranks' launches.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/trainer.h"
#include "core/workload.h"

namespace headroom::ranks {

/// What a rank's trainer is made of. Functions run in the rank's own thread.
struct Rank {
  std::unique_ptr<Trainer> trainer;
  /// What needs the other ranks, such as a capture with a collective in it: called once, when all trainers are made.
  /// May be null.
  std::function<void()> begin;
};

/// Makes rank 0 to workload.devices - 1, all at the same time, with make(rank). Its losses are the means of the ranks', its
/// parameters and slots rank 0's, once all have been found to have the same bits; where they differ it throws, and says
/// where. When a rank throws, `give_up` is called, from any thread and once: it has to end what the others wait for. What is
/// then thrown names the rank that failed first. After that every call throws.
std::unique_ptr<Trainer> make_trainer(const Workload& workload, const std::string& backend,
                                      const std::function<Rank(int rank)>& make,
                                      std::function<void()> give_up = nullptr);

}  // namespace headroom::ranks
