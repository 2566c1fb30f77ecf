// Each planted fault is one: the step check passes the honest trainer and fails every other, in every precision.
#include "faulty_trainers.h"

#include <gtest/gtest.h>

#include <random>

#include "analysis/verification.h"
#include "scratch.h"

namespace headroom {
namespace {

Verification check(Fault fault, Precision precision, const Scratch& scratch) {
  const TrainerRequest request{scratch.workload, precision, scratch.view(), scratch.initial, -1, ""};
  const std::unique_ptr<Trainer> trainer = make_faulty_trainer(request, fault);
  std::vector<StepErrors> errors;
  const std::vector<std::int64_t> steps(std::begin(kCheckSteps), std::end(kCheckSteps));
  follow_reference(
      scratch.workload, precision, /*rounding=*/true, scratch.view(), scratch.initial, steps,
      [&](const ReferencePoint& point) {
        trainer->set_state(point.start);
        trainer->train(point.step, 1);
        errors.push_back(compare_step(scratch.workload.optimizer, point, trainer->state()));
      },
      [](const Parameters&) {}, {.copies = kCopies});
  return judge(step_update_checks(scratch.workload, errors, precision));
}

class PlantedFault : public ::testing::TestWithParam<Precision> {
 protected:
  Scratch scratch_{small_workload({30, 24, 16, 10}, 8, std::random_device()())};
};

TEST_P(PlantedFault, OnlyTheHonestTrainerPasses) {
  SCOPED_TRACE("seed " + std::to_string(scratch_.workload.seed));
  const Verification honest = check(Fault::kNone, GetParam(), scratch_);
  EXPECT_EQ(honest.verdict, Verdict::kPass) << failure_message(honest);
  for (const Fault fault : {Fault::kLearningRate, Fault::kFrozenLayer, Fault::kNoBiasUpdate,
                            Fault::kShiftedBatches, Fault::kNan}) {
    EXPECT_EQ(check(fault, GetParam(), scratch_).verdict, Verdict::kFail)
        << "fault " << static_cast<int>(fault);
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, PlantedFault, ::testing::ValuesIn(kAllPrecisions),
                         [](const auto& precision) { return std::string(to_string(precision.param)); });

}  // namespace
}  // namespace headroom
