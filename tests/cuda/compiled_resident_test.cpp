// The two forms of cuda-resident's kernels: the plan as an argument, and as constants of the code. Requests of each are compiled
// without a GPU too.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "column_kernels.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "not_finite.h"
#include "one_compiler.h"
#include "resident/column_plan.h"
#include "resident/requests.h"
#include "resident_test_trainer.h"
#include "step_check.h"

namespace headroom {
namespace {

#define NEEDS_GPU() \
  if (const auto reason = resident_unavailable(0)) GTEST_SKIP() << *reason

using Kernel = ResidentOptions::Kernel;
using resident::PlanForm;
constexpr resident::Limits kH200{.sm_count = 132, .shared_bytes = 232448};
const ResidentOptions kConstants = {.kernel = Kernel::kSlices, .plan_form = PlanForm::kConstants};

TEST(ResidentForms, SmallNetworksTrainWithTheSameBitsInBoth) {
  NEEDS_GPU();
  for (const auto& [name, precision] : kFormCells) {
    NamedProblem problem(name, fresh_seed());
    const auto trained = [&](PlanForm form) {
      const auto trainer =
          make_resident_test_trainer(problem.workload, precision, problem.dataset.train(), problem.initial,
                                     {.kernel = Kernel::kSlices, .plan_form = form});
      trainer->train(0, 20);
      const Parameters end = trainer->parameters();
      std::vector<float> values(end.flat().begin(), end.flat().end());
      for (const float loss : trainer->losses(0, 20)) values.push_back(loss);
      return values;
    };
    EXPECT_EQ(trained(PlanForm::kConstants), trained(PlanForm::kArgument)) << problem.described(precision);
  }
}
TEST(ResidentForms, ConstantsOfOtherDepthsMatchTheOracle) {
  NEEDS_GPU();
  for (const auto& [name, precision] : kDepthCells) {
    NamedProblem problem(name, fresh_seed());
    const auto trainer = make_resident_test_trainer(problem.workload, precision, problem.dataset.train(),
                                                    problem.initial, kConstants);
    check_against_oracle(problem, precision, *trainer, {0, 1, 7, 29, 71}, 3);
  }
}

TEST(ResidentForms, ANaNComesOutOfConstantsAsNaNLosses) {
  NEEDS_GPU();
  for (const auto& [name, precision] : {kDepthCells[1], kDepthCells[2]}) {
    NotFiniteProblem problem(name);
    expect_nans_in_the_losses(problem, precision, NaNPlaces::kFew, [&] {
      return make_resident_test_trainer(problem.workload, precision, problem.dataset.train(), problem.initial,
                                        kConstants);
    });
  }
}

/// By each compiler that this machine has; the plans are those of an H200.
class ResidentRequests : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string reason;
    compiler_ = jit::only(GetParam(), reason);
    if (compiler_ == nullptr) GTEST_SKIP() << reason;
  }
  void expect_to_compile(const resident::AnyPlan& plan, Precision precision, PlanForm form) const {
    const jit::Request request = request_of(plan, precision, form);
    EXPECT_EQ(request.constants.empty(), form == PlanForm::kArgument);
    EXPECT_GT(jit::compile(request, {}, compiler_.get(), jit::cubins_in(folder_of_kept_kernels())).registers,
              0);
  }
  std::unique_ptr<jit::Compiler> compiler_;
};
INSTANTIATE_TEST_SUITE_P(By, ResidentRequests, testing::Values("nvcc", "nvrtc"),
                         [](const auto& compiler) { return std::string(compiler.param); });

TEST_P(ResidentRequests, OfSlicesCompileWithoutAGpuInBothForms) {
  const auto plan = [](const char* name) {
    return resident::make_slice_plan(parse_workload_name(name), Precision::kFp16, resident::Form::kCluster,
                                     kH200);
  };
  expect_to_compile(plan("mlp-33x24x17x7x5-b17"), Precision::kFp16, PlanForm::kArgument);
  expect_to_compile(plan("mlp-33x24x5-b17"), Precision::kFp16, PlanForm::kConstants);
}
TEST_P(ResidentRequests, OfBlocksAndPatchesCompileWithoutAGpu) {
  const Workload workload = parse_workload_name("mlp-33x24x17x7x5-b17");
  expect_to_compile(resident::make_block_plan(workload, Precision::kFp32, kH200), Precision::kFp32,
                    PlanForm::kArgument);
  expect_to_compile(resident::make_patch_plan(workload, Precision::kFp16, kH200), Precision::kFp16,
                    PlanForm::kArgument);
}
TEST_P(ResidentRequests, OfColumnsAndSlotsCompileWithoutAGpu) {
  expect_to_compile(
      resident::make_column_plan(parse_workload_name("mlp-33x136x5-b17"), Precision::kFp16, kH200),
      Precision::kFp16, PlanForm::kConstants);
  expect_to_compile(
      resident::make_column_plan(parse_workload_name("mlp-784x256x256x256x10-b64"), Precision::kBf16, kH200),
      Precision::kBf16, PlanForm::kConstants);
  expect_to_compile(resident::make_slot_plan(parse_workload_name("mlp-33x24x9-b17-momentum0.9"),
                                             Precision::kBf16, resident::Form::kGrid, kH200, 2),
                    Precision::kBf16, PlanForm::kConstants);
}

/// The published networks, Adam, and another depth, as a run chooses.
TEST(ResidentRequests, HaveTheFormThatWasMeasuredToBeFaster) {
  const auto form = [](const char* name, Precision precision, int team, int own) {
    return resident::plan_form_of(resident::make_slice_plan(parse_workload_name(name), precision,
                                                            resident::Form::kGrid, kH200, team, own),
                                  precision);
  };
  EXPECT_EQ(form("mlp-784x128x128x128x10-b32", Precision::kFp32, 4, 1), PlanForm::kArgument);
  EXPECT_EQ(form("mlp-784x1024x1024x1024x10-b32", Precision::kBf16, 2, 2), PlanForm::kArgument);
  EXPECT_EQ(form("mlp-784x128x128x128x128x10-b32", Precision::kTf32, 4, 1), PlanForm::kConstants);
  EXPECT_EQ(form("mlp-784x256x256x256x256x10-b32", Precision::kFp32, 3, 1), PlanForm::kArgument);
  EXPECT_EQ(form("mlp-784x512x512x512x512x10-b32", Precision::kTf32, 2, 1), PlanForm::kArgument);
  EXPECT_EQ(form("mlp-784x512x512x512x512x10-b32", Precision::kBf16, 1, 1), PlanForm::kConstants);
}
TEST(ResidentRequests, WithTheirPlanAsAnArgumentAreThoseOfAllNetworksOfAKind) {
  const auto request = [](const char* name, PlanForm form) {
    return request_of(resident::make_slice_plan(parse_workload_name(name), Precision::kFp16,
                                                resident::Form::kCluster, kH200),
                      Precision::kFp16, form);
  };
  for (const PlanForm form : {PlanForm::kArgument, PlanForm::kConstants}) {
    const jit::Request one = request("mlp-784x128x128x128x10-b32", form),
                       other = request("mlp-33x72x17x7x5-b17", form);
    EXPECT_EQ(one.kernel, other.kernel);
    EXPECT_EQ(jit::digest_of(one, {}) == jit::digest_of(other, {}), form == PlanForm::kArgument);
  }
}

}  // namespace
}  // namespace headroom
