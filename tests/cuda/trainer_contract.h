// What the tests of trainers share: a network with data, and what every trainer on a device keeps to.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "core/parameters.h"
#include "core/trainer.h"
#include "gpu_test.h"

namespace headroom {

/// A network of a fresh seed with data that outlives its trainers.
struct Problem {
  Workload workload;
  Dataset data;
  Parameters initial;

  explicit Problem(Workload of, std::int64_t data_bytes = std::int64_t{1} << 20)
      : workload(std::move(of)),
        data(make_dataset(workload, data_bytes)),
        initial(initial_parameters(workload.model.widths, workload.seed)) {}
  Problem(std::vector<int> widths, int batch_size, std::int64_t data_bytes = std::int64_t{1} << 20)
      : Problem(test_workload(std::move(widths), batch_size, fresh_seed()), data_bytes) {}
};

inline void expect_a_non_finite_weight_in_the_loss(Trainer& trainer, const Problem& problem) {
  Parameters broken = problem.initial;
  broken.weight(1)[3] = NAN;
  trainer.set_parameters(broken);
  trainer.train(0, 1);
  EXPECT_FALSE(std::isfinite(trainer.losses(0, 1)[0]));
}

template <class MakeTrainer>
void expect_memory_counted_and_given_back(MakeTrainer make) {
  const std::int64_t before = DeviceMemory::held_bytes();
  {
    const std::unique_ptr<Trainer> trainer = make();
    EXPECT_GT(trainer->peak_device_bytes(), before);
  }
  EXPECT_EQ(DeviceMemory::held_bytes(), before);
}

}  // namespace headroom
