// The kernels of cuda-fused as they are compiled at set-up: which way a plan is taken, that requests compile without a GPU, and that both ways
// train the same bits. fused_trainer_test.cpp has the trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "fused/compiled.h"
#include "fused/kernels.h"
#include "fused/trainer.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "kept_fused_trainer.h"
#include "not_finite.h"
#include "step_check.h"

namespace headroom {
namespace {

#define NEEDS_GPU() \
  if (const auto reason = fused_unavailable(0)) GTEST_SKIP() << *reason

constexpr fused::Limits kH200{.sm_count = 132, .shared_bytes = 232448};

/// Each form once: warps, apart, pipeline, clusters, pairs, general with one group of classes and with more.
const std::vector<const char*> kEveryForm = {"mlp-20x9x32x4x3-b3000",           "mlp-64x64x64x16-b300",
                                             "mlp-64x40x64x5-b18001",           "mlp-128x100x128x16-b600",
                                             "mlp-65x66x70x66x68x5-b33000",     "mlp-140x100x70x10-b300",
                                             "mlp-64x64x64x64x64x64x64x20-b300"};

class FusedKernels : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Every, FusedKernels, testing::Values(Precision::kFp16, Precision::kBf16),
                         [](const auto& precision) { return std::string(to_string(precision.param)); });

std::vector<float> trained(Trainer& trainer) {
  constexpr std::int64_t kSteps = 20;
  trainer.train(0, kSteps);
  const Parameters end = trainer.parameters();
  std::vector<float> values(end.flat().begin(), end.flat().end());
  for (const float loss : trainer.losses(0, kSteps)) {
    EXPECT_TRUE(std::isfinite(loss));
    values.push_back(loss);
  }
  return values;
}

TEST_P(FusedKernels, EveryFormTrainsTheSameBitsWithThePlanAsConstantsAndAsAnArgument) {
  NEEDS_GPU();
  for (const char* name : kEveryForm) {
    NamedProblem problem(name, fresh_seed());
    const auto with = [&](fused::PlanAs as) {
      const auto trainer = make_fused_trainer(
          problem.workload, GetParam(), problem.dataset.train(), problem.initial, 0,
          [&](const fused::Plan& plan) {
            return jit::ready(jit::compile(fused::compiled_request(plan, GetParam(), as), {},
                                           jit::found_compiler(), jit::cubins_in(folder_of_kept_kernels())));
          });
      return trained(*trainer);
    };
    EXPECT_EQ(with(fused::PlanAs::kConstants), with(fused::PlanAs::kArgument))
        << problem.described(GetParam());
  }
}

TEST_P(FusedKernels, OtherRulesOfThePipelineAndOfNarrowNetworksMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name :
       {"mlp-32x64x64x64x64x16-b34000-mse-adam", "mlp-40x33x5-b35001-bce-momentum0.9",
        "mlp-64x50x64x10-b34001-adamw", "mlp-50x64x1-b34000-mse", "mlp-17x64x64x6-b64-tanh-mse-adam"}) {
    NamedProblem problem(name, fresh_seed());
    const auto trainer =
        make_kept_fused_trainer(problem.workload, GetParam(), problem.dataset.train(), problem.initial, 0);
    check_against_oracle(problem, GetParam(), *trainer, {0, 1, 9}, 3);
  }
}

void expect_nans_in_the_losses_of(const std::vector<const char*>& names, Precision precision) {
  for (const char* name : names) {
    NotFiniteProblem problem(name);
    expect_nans_in_the_losses(problem, precision, NaNPlaces::kFew, [&] {
      return make_kept_fused_trainer(problem.workload, precision, problem.dataset.train(), problem.initial,
                                     0);
    });
  }
}
TEST_P(FusedKernels, ANaNComesOutOfThePipelineWithOtherRulesAsNaNLosses) {
  NEEDS_GPU();
  expect_nans_in_the_losses_of({"mlp-40x33x5-b35001-mse-adam", "mlp-64x50x64x10-b34001-adamw"}, GetParam());
}

TEST(FusedKernels, SaysWhetherItsKernelWasKept) {
  NEEDS_GPU();
  std::string folder = (std::filesystem::temp_directory_path() / "compiled-fused-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  NamedProblem problem("mlp-20x9x3-b300", fresh_seed());
  const auto make = [&] {
    return make_compiled_fused_trainer(problem.workload, Precision::kBf16, problem.dataset.train(),
                                       problem.initial, 0, folder);
  };
  const auto first = make();
  EXPECT_EQ(first->setup_cache(), SetupCache::kCold);
  EXPECT_THAT(first->note(), testing::HasSubstr("its kernel was compiled in "));
  const auto second = make();
  EXPECT_EQ(second->setup_cache(), SetupCache::kWarm);
  EXPECT_THAT(second->note(), testing::HasSubstr("its kernel was kept, of "));
  EXPECT_EQ(trained(*first), trained(*second));
  std::filesystem::remove_all(folder);
}

/// As each form is taken; the other format and the other way only where they are to be kept, as it takes half a minute.
TEST(FusedKernels, RequestsOfEveryFormCompileWithoutAGpu) {
  const std::string folder = folder_of_kept_kernels();
  std::size_t count = 0;
  for (const char* name : kEveryForm) {
    const Precision first = count++ % 2 == 0 ? Precision::kFp16 : Precision::kBf16;
    const Precision second = first == Precision::kFp16 ? Precision::kBf16 : Precision::kFp16;
    try {
      EXPECT_GT(compile_fused(parse_workload_name(name), first, kH200, folder).registers, 0) << name;
      if (folder.empty()) continue;
      for (const Precision precision : {first, second})
        for (const auto as : {fused::PlanAs::kConstants, fused::PlanAs::kArgument}) {
          const fused::Plan plan = fused::make_plan(parse_workload_name(name), precision, kH200);
          jit::compile(fused::compiled_request(plan, precision, as), {}, jit::found_compiler(),
                       jit::cubins_in(folder));
        }
    } catch (const UnsupportedError& error) {
      GTEST_SKIP() << error.what();
    }
  }
}

TEST(FusedKernels, OtherRulesCompileWithoutAGpu) {
  try {
    for (const char* name : {"mlp-32x64x64x64x64x16-b262144-mse-adam", "mlp-17x64x64x6-b64-tanh-mse-adam"})
      EXPECT_GT(compile_fused(parse_workload_name(name), Precision::kBf16, kH200, folder_of_kept_kernels())
                    .registers,
                0)
          << name;
  } catch (const UnsupportedError& error) {
    GTEST_SKIP() << error.what();
  }
}

TEST(FusedKernels, IsCompiledForADeviceThatIsNotThereAndFoundAgain) {
  std::string folder = (std::filesystem::temp_directory_path() / "compiled-fused-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const Workload workload = parse_workload_name("mlp-20x9x3-b300");
  try {
    EXPECT_FALSE(compile_fused(workload, Precision::kFp16, kH200, folder).was_kept);
    EXPECT_TRUE(compile_fused(workload, Precision::kFp16, kH200, folder).was_kept);
  } catch (const UnsupportedError& error) {
    std::filesystem::remove_all(folder);
    GTEST_SKIP() << error.what();
  }
  EXPECT_THROW(compile_fused(parse_workload_name("mlp-20x900x3-b30"), Precision::kFp16, kH200, folder),
               UnsupportedError);
  std::filesystem::remove_all(folder);
}

jit::Request request_of(const char* name) {
  const fused::Plan plan = fused::make_plan(parse_workload_name(name), Precision::kFp16, kH200);
  return fused::compiled_request(plan, Precision::kFp16, fused::plan_as(plan));
}
TEST(FusedKernels, TakesTheBatchForAConstantWhereThatIsFaster) {
  for (const char* form : {"mlp-20x9x3-b", "mlp-64x64x64x64x64x64x10-b", "mlp-40x33x5-b35000-mse-adam"}) {
    const std::string name = form;
    const bool has_batch = !name.ends_with("-b");
    const jit::Request one = request_of((has_batch ? name : name + "300").c_str()),
                       other = request_of((has_batch ? "mlp-40x33x5-b35001-mse-adam" : name + "301").c_str());
    EXPECT_EQ(one.kernel, other.kernel);
    EXPECT_NE(one.constants, other.constants);
  }
}
TEST(FusedKernels, SharesAKernelBetweenBatchesAndWidthsElsewhere) {
  for (const auto& [one, other] : {std::pair{"mlp-64x64x64x16-b300", "mlp-40x33x64x7-b301"},
                                   {"mlp-64x40x64x5-b18001", "mlp-50x64x33x16-b40000"},
                                   {"mlp-128x100x128x16-b600", "mlp-66x70x128x10-b17001"},
                                   {"mlp-65x66x70x66x68x5-b33000", "mlp-128x128x128x128x128x16-b131072"},
                                   {"mlp-784x128x128x10-b300", "mlp-140x100x70x100x10-b4096"}}) {
    const jit::Request first = request_of(one), second = request_of(other);
    EXPECT_EQ(jit::program_text(first) + first.kernel, jit::program_text(second) + second.kernel) << one;
    EXPECT_EQ(first.name, second.name) << one;
  }
}

/// A compiler that spills whatever has its plan as constants.
class SpillsConstants final : public jit::Compiler {
 public:
  const std::string& name() const override { return name_; }
  const std::string& identity() const override { return name_; }
  jit::Cubin compile(const jit::Request& request, const jit::Architecture&) const override {
    for (const auto& [macro, value] : request.constants)
      if (macro == "FUSED_PLAN") throw jit::CompileError("it spills", "");
    jit::Cubin cubin;
    cubin.kernel = request.kernel;
    return cubin;
  }

 private:
  std::string name_ = "spills constants";
};
TEST(FusedKernels, TakesThePlanAsAnArgumentWhereConstantsAreRefused) {
  const SpillsConstants compiler;
  const auto kernel_of = [&](const char* name) {
    const fused::Plan plan = fused::make_plan(parse_workload_name(name), Precision::kFp16, kH200);
    return fused::compile_plan(plan, Precision::kFp16, {}, &compiler, jit::Cache("")).kernel;
  };
  EXPECT_THAT(kernel_of("mlp-20x9x3-b300"), testing::HasSubstr("warp_kernel"));
  // With targets there is no other way.
  EXPECT_THROW(kernel_of("mlp-40x33x5-b35000-mse-adam"), jit::CompileError);
}
TEST(FusedKernels, SaysWhatToInstallWhereThereIsNoCompilerAndNoKeptKernel) {
  const fused::Plan plan = fused::make_plan(parse_workload_name("mlp-20x9x3-b300"), Precision::kFp16, kH200);
  try {
    fused::compile_plan(plan, Precision::kFp16, {}, nullptr, jit::Cache(""));
    FAIL() << "there is no compiler";
  } catch (const UnsupportedError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("install nvcc and g++, or NVRTC"));
  }
}

}  // namespace
}  // namespace headroom
