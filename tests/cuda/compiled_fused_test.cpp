// cuda-fused with its kernel compiled for the network: it trains what the oracle does and, bit for bit, what the kernel
// compiled ahead does. The requests are compiled without a GPU too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "fused/trainer.h"
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

class CompiledFused : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Every, CompiledFused, testing::Values(Precision::kFp16, Precision::kBf16),
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

TEST_P(CompiledFused, SmallNetworksOfEveryFormTrainWithTheBitsOfTheKernelCompiledAhead) {
  NEEDS_GPU();
  for (const char* name : kEveryForm) {
    NamedProblem problem(name, fresh_seed());
    const auto ahead =
        make_fused_trainer(problem.workload, GetParam(), problem.dataset.train(), problem.initial, 0);
    const auto compiled =
        make_kept_fused_trainer(problem.workload, GetParam(), problem.dataset.train(), problem.initial, 0);
    EXPECT_EQ(trained(*compiled), trained(*ahead))
        << problem.described(GetParam()) << ", " << compiled->note();
  }
}

TEST_P(CompiledFused, EveryFormMatchesTheOracle) {
  NEEDS_GPU();
  for (const char* name : kEveryForm) {
    NamedProblem problem(name, fresh_seed());
    const auto trainer =
        make_kept_fused_trainer(problem.workload, GetParam(), problem.dataset.train(), problem.initial, 0);
    check_against_oracle(problem, GetParam(), *trainer, {0, 1, 9}, 3);
  }
}

TEST_P(CompiledFused, OtherRulesOfThePipelineAndOfNarrowNetworksMatchTheOracle) {
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
TEST_P(CompiledFused, ANaNComesOutOfEveryFormAsNaNLosses) {
  NEEDS_GPU();
  expect_nans_in_the_losses_of(kEveryForm, GetParam());
}
TEST_P(CompiledFused, ANaNComesOutOfThePipelineWithOtherRulesAsNaNLosses) {
  NEEDS_GPU();
  expect_nans_in_the_losses_of({"mlp-40x33x5-b35001-mse-adam", "mlp-64x50x64x10-b34001-adamw"}, GetParam());
}

TEST(CompiledFused, SaysWhetherItsKernelWasKept) {
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

/// Both formats only where they are to be kept: it takes half a minute.
TEST(CompiledFused, RequestsOfEveryFormCompileWithoutAGpu) {
  const std::string folder = folder_of_kept_kernels();
  std::size_t count = 0;
  for (const char* name : kEveryForm) {
    const Precision first = count++ % 2 == 0 ? Precision::kFp16 : Precision::kBf16;
    const Precision second = first == Precision::kFp16 ? Precision::kBf16 : Precision::kFp16;
    try {
      EXPECT_GT(compile_fused(parse_workload_name(name), first, kH200, folder).registers, 0) << name;
      if (!folder.empty()) compile_fused(parse_workload_name(name), second, kH200, folder);
    } catch (const UnsupportedError& error) {
      GTEST_SKIP() << error.what();
    }
  }
}

TEST(CompiledFused, OtherRulesCompileWithoutAGpu) {
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

TEST(CompiledFused, IsCompiledForADeviceThatIsNotThereAndFoundAgain) {
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

TEST(CompiledFused, TakesTheBatchForAConstant) {
  const auto request = [](const char* name) {
    return fused::compiled_request(fused::make_plan(parse_workload_name(name), Precision::kFp16, kH200),
                                   Precision::kFp16);
  };
  const jit::Request one = request("mlp-20x9x3-b300"), other = request("mlp-20x9x3-b301");
  EXPECT_EQ(one.kernel, other.kernel);
  EXPECT_NE(one.constants, other.constants);
}

}  // namespace
}  // namespace headroom
