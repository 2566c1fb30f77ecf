// Networks of any activation, loss and optimizer, for the tests of every combination.
#pragma once

#include <utility>
#include <vector>

#include "fresh_seed.h"
#include "gpu_test.h"

namespace headroom {

/// One of each kind.
inline std::vector<Optimizer> all_optimizers() {
  return {{},
          {.momentum = 0.9},
          {.kind = Optimizer::Kind::kAdam},
          {.kind = Optimizer::Kind::kAdamW, .weight_decay = 0.1}};
}

/// test_workload() of a fresh seed, trained by these rules.
inline Workload rules_workload(std::vector<int> widths, int batch_size, Activation activation, Loss loss,
                               const Optimizer& optimizer) {
  Workload workload = test_workload(std::move(widths), batch_size, fresh_seed());
  workload.model.activation = activation;
  workload.loss = loss;
  workload.optimizer = optimizer;
  workload.name = default_name(workload);
  return workload;
}

}  // namespace headroom
