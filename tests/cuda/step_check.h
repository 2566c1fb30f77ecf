// The driver's step check for a trainer under test: one step from each of the oracle's points, and ten from the start.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "analysis/verification.h"
#include "core/dataset.h"
#include "core/oracle.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "fresh_seed.h"
#include "sanitizer.h"

namespace headroom {

/// A network by its name, with the least data that it can have.
struct NamedProblem {
  Workload workload;
  Dataset dataset;
  Parameters initial;

  NamedProblem(const std::string& name, std::uint64_t seed) : workload(parse_workload_name(name)) {
    workload.seed = seed;
    // Far above the fp32 masters' own rounding, also where a deep narrow network has next to no gradient.
    if (is_deep()) workload.optimizer.learning_rate = 0.5;
    dataset = make_dataset(workload, 0);
    initial = initial_parameters(workload.widths, seed);
  }
  bool is_deep() const { return workload.layers() > 4; }
  std::string described(Precision precision) const {
    return workload.name + " " + std::string(to_string(precision)) + " seed " + std::to_string(workload.seed);
  }
};

/// racecheck looks for hazards, not at values: under it one launch of `sanitized_steps`, which should be so many that
/// every buffer is written again, is all that is trained.
inline void check_against_oracle(const NamedProblem& problem, Precision precision, Trainer& trainer,
                                 const std::vector<std::int64_t>& steps, std::int64_t sanitized_steps) {
  SCOPED_TRACE(problem.described(precision) + ", " + trainer.note());
  if (under_racecheck()) {
    trainer.train(0, sanitized_steps);
    for (const float loss : trainer.losses(0, sanitized_steps)) EXPECT_TRUE(std::isfinite(loss));
    return;
  }
  std::vector<StepErrors> errors;
  std::vector<double> free_errors;
  follow_reference(
      problem.workload, precision, true, problem.dataset.train(), problem.initial, steps,
      [&](const ReferencePoint& point) {
        trainer.set_parameters(point.start);
        trainer.train(point.step, 1);
        errors.push_back(compare_step(point.step, point.start, trainer.parameters(), point.update));
        EXPECT_NEAR(trainer.losses(point.step, 1)[0], point.loss, 2e-3 * std::fabs(point.loss)) << point.step;
      },
      [&](const Parameters& end) {
        trainer.set_parameters(problem.initial);
        trainer.train(0, kFreeSteps);
        free_errors = update_errors_from_end(problem.initial, trainer.parameters(), end);
      });
  double worst = 0;
  std::string all;
  for (const Check& check : step_update_checks(problem.workload, errors, Contract::kExact, precision)) {
    EXPECT_TRUE(check.passed) << check.name << " " << check.tensor << ": median " << check.error << ", worst "
                              << check.worst;
    if (check.name != "step_update") continue;
    worst = std::max(worst, check.error);
    all += " " + check.tensor + " " + std::to_string(check.error);
  }
  // With the large learning rate of the deep networks one ReLU that flips in a layer of nine is 6e-2.
  const Check free = ten_steps_check(free_errors);
  EXPECT_LT(free.error, problem.is_deep() ? 0.3 : free.bound) << "ten steps, worst " << free.worst;
  std::printf("%s: median of the worst tensor %.1e, ten steps %.1e (%s)%s\n",
              problem.described(precision).c_str(), worst, free.error, trainer.note().c_str(),
              worst < 1e-2 ? "" : all.c_str());
  std::fflush(stdout);
}

}  // namespace headroom
