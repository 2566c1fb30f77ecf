// The kernels of cuda-tiled as requests to a compiler: none of these tests needs a GPU. The plans are those of an H200.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/error.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "kept_kernels.h"
#include "one_compiler.h"
#include "tiled/compiled.h"
#include "tiled/schedule.h"

namespace headroom {
namespace {

constexpr TiledTarget kH200{.architecture = {.major = 9, .minor = 0}, .sm_count = 132};
constexpr TiledTarget kA100{.architecture = {.major = 8, .minor = 0}, .sm_count = 108};

tiled::KernelRules rules_of(const char* name) {
  return tiled::plan_step(parse_workload_name(name), Precision::kBf16, false, kH200.sm_count).kernel.rules;
}
std::string kernel_of(const char* name, Precision precision = Precision::kBf16,
                      const TiledTarget& target = kH200) {
  return tiled_request(parse_workload_name(name), precision, target).kernel;
}

TEST(TiledKernels, HaveTheRulesOfTheirNetwork) {
  const tiled::KernelRules rules = rules_of("mlp-20x70x12-b130-silu-bce-momentum0.9");
  EXPECT_EQ(rules.activation, Activation::kSilu);
  EXPECT_EQ(rules.loss, Loss::kBinaryCrossEntropy);
  EXPECT_EQ(rules.slots, 1);
}
TEST(TiledKernels, HaveOnlyTheFormsOfTheirTasks) {
  using tiled::Form;
  const tiled::KernelRules few = rules_of("mlp-784x256x256x10-b64"),
                           many = rules_of("mlp-784x256x256x100-b64");
  EXPECT_TRUE(few.may_have(Form::kLossGradient) && !few.may_have(Form::kLoss) &&
              !few.may_have(Form::kOutputs));
  EXPECT_TRUE(many.may_have(Form::kLoss) && many.may_have(Form::kOutputs) &&
              !many.may_have(Form::kLossGradient));
  EXPECT_FALSE(few.may_have(Form::kUpdate));
  EXPECT_TRUE(rules_of("mlp-48x64x64x12-b24576").may_have(Form::kUpdate));
}
TEST(TiledKernels, KnowWhetherEveryTileIsWhole) {
  EXPECT_TRUE(rules_of("mlp-784x256x256x10-b64").whole_tiles);
  EXPECT_FALSE(rules_of("mlp-784x256x200x10-b64").whole_tiles);
  EXPECT_FALSE(rules_of("mlp-784x256x256x10-b65").whole_tiles);
}
TEST(TiledKernels, AreSharedByNetworksOfOneKind) {
  EXPECT_EQ(kernel_of("mlp-784x256x256x256x10-b64"), kernel_of("mlp-100x512x512x256x9-b64"));
  EXPECT_NE(kernel_of("mlp-784x256x256x256x10-b64"), kernel_of("mlp-784x256x256x256x10-b64-adam"));
}
TEST(TiledKernels, AreThoseForEveryGpuWhereThereIsNoWgmma) {
  EXPECT_THAT(kernel_of("mlp-33x7-b31", Precision::kBf16, kA100),
              testing::HasSubstr("train_portable_kernel"));
  EXPECT_THAT(kernel_of("mlp-33x7-b31", Precision::kTf32), testing::HasSubstr("train_portable_kernel"));
  EXPECT_THAT(kernel_of("mlp-33x7-b31"), testing::HasSubstr("::train_kernel"));
}
TEST(TiledKernels, RefuseAGpuThatIsTooOld) {
  try {
    kernel_of("mlp-33x7-b31", Precision::kFp32, {.architecture = {.major = 7, .minor = 5}, .sm_count = 40});
    FAIL() << "it is too old";
  } catch (const UnsupportedError& error) {
    EXPECT_STREQ(error.what(), "cuda-tiled: compute capability 7.5, needs 8.0 or newer");
  }
}
TEST(TiledKernels, NameTheArchitectureAsCompilersDo) {
  EXPECT_EQ(kH200.architecture.name(), "sm_90a");
  EXPECT_EQ((jit::Architecture{.major = 8, .minor = 6}.name()), "sm_86");
}

/// By each compiler that this machine has.
class TiledRequests : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string reason;
    compiler_ = jit::only(GetParam(), reason);
    if (compiler_ == nullptr) GTEST_SKIP() << reason;
  }
  void expect_to_compile(const char* name, Precision precision, const TiledTarget& target) const {
    const jit::Request request = tiled_request(parse_workload_name(name), precision, target);
    const jit::Cache kept = jit::cubins_in(folder_of_kept_kernels());
    EXPECT_GT(jit::compile(request, target.architecture, compiler_.get(), kept).registers, 0);
  }
  std::unique_ptr<jit::Compiler> compiler_;
};
INSTANTIATE_TEST_SUITE_P(By, TiledRequests, testing::Values("nvcc", "nvrtc"),
                         [](const auto& compiler) { return std::string(compiler.param); });

TEST_P(TiledRequests, OfAnH200CompileWithoutAGpu) {
  expect_to_compile("mlp-33x24x17x7x5-b17-gelu-mse-adam", Precision::kFp16, kH200);
}
TEST_P(TiledRequests, OfAnOlderGpuCompileWithoutAGpu) {
  expect_to_compile("mlp-33x24x17x7x5-b17-tanh-bce-momentum0.9", Precision::kBf16, kA100);
}

}  // namespace
}  // namespace headroom
