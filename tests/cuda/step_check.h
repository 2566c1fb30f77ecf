// The driver's step check for a trainer under test: one step from each of the oracle's points, and ten from the start.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "analysis/verification.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "data/dataset.h"
#include "fresh_seed.h"
#include "oracle/oracle.h"
#include "sanitizer.h"
#include "shortened.h"

namespace headroom {

/// A network by its name, with the least data that it can have.
struct NamedProblem {
  Workload workload;
  Dataset dataset;
  Parameters initial;

  NamedProblem(const std::string& name, std::uint64_t seed) : workload(parse_workload_name(name)) {
    workload.seed = seed;
    // Far above the fp32 masters' own rounding, also where a deep narrow network has next to no gradient.
    if (is_deep() && workload.optimizer.kind == Optimizer::Kind::kSgd) workload.optimizer.learning_rate = 0.5;
    dataset = make_dataset(workload, 0);
    initial = initial_parameters(workload.model.widths, seed);
  }
  bool is_deep() const { return workload.layers() > 4; }
  std::string described(Precision precision) const {
    return workload.name + " " + std::string(to_string(precision)) + " seed " + std::to_string(workload.seed);
  }
};

/// A step of which takes a second where the CPU plays the GPU.
constexpr int kLargeBatch = 10000;
inline bool has_large_batch(const NamedProblem& problem) {
  return problem.workload.batch_size >= kLargeBatch;
}

/// Where tests are shortened (shortened.h): the steps to compare; the last of them says how many are trained from the start in
/// one launch. The median of two steps is their mean, which one ReLU that flips can spoil in a small batch.
inline std::vector<std::int64_t> shortened_steps(const NamedProblem& problem) {
  if (has_large_batch(problem)) return {0, 2};
  return {0, 1, 6};
}

/// One step from each of `steps`, and ten from the start, which the steps must reach.
/// racecheck looks for hazards, not at values: under it one launch of `sanitized_steps`, which should be so many that
/// every buffer is written again, is all that is trained.
inline void check_against_oracle(const NamedProblem& problem, Precision precision, Trainer& trainer,
                                 std::vector<std::int64_t> steps, std::int64_t sanitized_steps) {
  SCOPED_TRACE(problem.described(precision) + ", " + trainer.note());
  ASSERT_GE(steps.back(), kFreeSteps - 1);  // also where they are shortened
  if (under_racecheck()) {
    trainer.train(0, sanitized_steps);
    for (const float loss : trainer.losses(0, sanitized_steps)) EXPECT_TRUE(std::isfinite(loss));
    return;
  }
  if (is_shortened()) steps = shortened_steps(problem);
  std::vector<StepErrors> errors;
  std::vector<double> free_errors;
  std::int64_t free_steps = kFreeSteps;
  const auto run_freely = [&](std::int64_t count, const Parameters& end) {
    trainer.set_state(State::initial(problem.initial, problem.workload.optimizer.slots()));
    trainer.train(0, count);
    free_errors = update_errors_from_end(problem.initial, trainer.parameters(), end);
    free_steps = count;
  };
  const std::vector<double> spreads = follow_reference(
      problem.workload, precision, true, problem.dataset.train(), problem.initial, steps,
      [&](const ReferencePoint& point) {
        trainer.set_state(point.start);
        trainer.train(point.step, 1);
        errors.push_back(compare_step(problem.workload.optimizer, point, trainer.state()));
        // A sum of exponentials near one is rounded to 2^-24, and so the loss, however small it has become.
        EXPECT_NEAR(trainer.losses(point.step, 1)[0], point.loss, 2e-3 * std::fabs(point.loss) + 1e-7)
            << point.step;
        if (is_shortened() && point.step == steps.back()) run_freely(point.step, point.start.parameters);
      },
      [&](const Parameters& end) { run_freely(kFreeSteps, end); }, {.copies = kCopies});
  double worst = 0;
  std::string all;
  for (const Check& check : step_update_checks(problem.workload, errors, precision)) {
    EXPECT_TRUE(check.passed || check.name == "evidence")
        << check.name << " " << check.tensor << ": " << check.error << ", at most " << check.bound;
    if (check.name != "step_update") continue;
    worst = std::max(worst, check.error);
    all += " " + check.tensor + " " + std::to_string(check.error);
  }
  // With the large learning rate of the deep networks one ReLU that flips in a layer of nine is 6e-2. Of fewer steps, one that
  // is as far off is more.
  const Check free = ten_steps_check(free_errors, spreads.empty() ? 0 : spreads.front());
  const double bound = free.bound * static_cast<double>(kFreeSteps) / static_cast<double>(free_steps);
  EXPECT_LT(free.error, problem.is_deep() ? 0.3 : bound) << free_steps << " steps, worst " << free.worst;
  std::printf("%s: worst tensor %.1e, %d steps %.1e (%s)%s\n", problem.described(precision).c_str(), worst,
              static_cast<int>(free_steps), free.error, trainer.note().c_str(),
              worst < 1e-2 ? "" : all.c_str());
  std::fflush(stdout);
}

/// Step numbers of which the bias corrections are far apart: at the last there is none any more.
inline constexpr std::int64_t kFarApartSteps[] = {0, 1, 17, 1000, std::int64_t{1} << 40};

/// One step from `start` at each of `steps`, which a trajectory need not reach: the batch, and the bias corrections of Adam, go by the
/// number alone. What parameters become is compared with the trainer's own new slots, not with the oracle's parameters: from slots of
/// zeros Adam moves a parameter by its learning rate, whichever way its gradient points. So one gradient near zero, whose sign a rounding
/// switches, would be 2 / sqrt(n) of a tensor of n parameters.
inline void check_single_steps(const Workload& workload, Precision precision, Trainer& trainer,
                               const DatasetView& data, const State& start,
                               std::span<const std::int64_t> steps) {
  for (const std::int64_t step : steps) {
    SCOPED_TRACE(workload.name + " " + std::string(to_string(precision)) + " seed " +
                 std::to_string(workload.seed) + ", step " + std::to_string(step));
    const ReferencePoint point =
        reference_step(workload, precision, Contract::kExact, data, start, step, kCopies);
    trainer.set_state(start);
    trainer.train(step, 1);
    EXPECT_NEAR(trainer.losses(step, 1)[0], point.loss, 1e-3 * std::fabs(point.loss) + 1e-5);
    const StepErrors errors = compare_step(workload.optimizer, point, trainer.state());
    for (const Check& check : step_update_checks(workload, {&errors, 1}, precision)) {
      EXPECT_TRUE(check.passed || check.name == "evidence")
          << check.name << " " << check.tensor << ": " << check.error << ", at most " << check.bound;
    }
  }
}

}  // namespace headroom
