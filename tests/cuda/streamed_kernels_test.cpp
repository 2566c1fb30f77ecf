// The kernels of cuda-streamed as they are compiled at set-up: which one a plan takes, and that requests compile without a GPU.
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kept_streamed_trainer.h"
#include "streamed/plan.h"

namespace headroom {
namespace {

constexpr streamed::Limits kH200{.sm_count = 132, .shared_bytes = 232448};

/// A workload that takes each kernel of plain SGD, and some with slots. `in_ci`: one of each form, as all take minutes.
struct Case {
  const char* name;
  Precision precision;
  const char* kernel;
  bool in_ci = false;
  bool hold = false;
};
constexpr Case kCases[] = {
    {"mlp-784x2048x2048x2048x10-b32", Precision::kFp32, "Fp32, 1, 0", true},
    {"mlp-784x4096x4096x4096x10-b32", Precision::kFp32, "Placed<Fp32, Kept::kNothing, 2>, 1, 0"},
    {"mlp-784x2048x2048x10-b100", Precision::kFp32, "Fp32, 4, 0"},
    {"mlp-784x2048x2048x2048x10-b32", Precision::kTf32, "Placed<PackedTf32, Kept::kFirstLayer, 0>, 1, 1"},
    {"mlp-1600x2048x2048x2048x10-b32", Precision::kTf32, "PackedTf32, 1, 1"},
    {"mlp-784x4096x4096x4096x10-b32", Precision::kTf32, "Placed<PackedTf32, Kept::kFirstLayer, 2>, 1, 2",
     true},
    {"mlp-784x6000x4000x4000x10-b32", Precision::kTf32, "Placed<Tf32, Kept::kNothing, 2>, 1, 0"},
    {"mlp-784x8192x8192x8192x10-b32", Precision::kTf32, "Tf32, 1, 0"},
    {"mlp-1600x2048x2048x2048x100-b32", Precision::kTf32, "Tf32, 1, 1"},
    {"mlp-784x2048x2048x2048x100-b32", Precision::kTf32, "Placed<Tf32, Kept::kFirstLayer, 0>, 1, 1"},
    {"mlp-784x2048x2048x10-b100", Precision::kTf32, "Tf32, 4, 0"},
    {"mlp-784x4096x4096x4096x4096x4096x10-b32", Precision::kTf32, "PackedTf32, 1, 2"},
    {"mlp-1600x2048x2048x2048x10-b32", Precision::kTf32, "Placed<PackedTf32, Kept::kNothing, 2>, 1, 1", false,
     true},
    {"mlp-784x2048x2048x2048x10-b32", Precision::kFp16, "Placed<Fp16, Kept::kFirstLayer, 0>, 1, 1"},
    {"mlp-1600x2048x2048x2048x10-b32", Precision::kFp16, "Fp16, 1, 1"},
    {"mlp-784x4096x4096x4096x10-b32", Precision::kFp16, "Placed<Fp16, Kept::kFirstLayer, 2>, 1, 2"},
    {"mlp-784x6000x4000x4000x10-b32", Precision::kFp16, "Placed<Fp16, Kept::kNothing, 2>, 1, 0"},
    {"mlp-784x8192x8192x8192x10-b32", Precision::kFp16, "Fp16, 1, 0"},
    {"mlp-784x2048x2048x10-b100", Precision::kFp16, "Fp16, 4, 0", true},
    {"mlp-784x2048x2048x2048x10-b32", Precision::kBf16, "Placed<Bf16, Kept::kLowerHalves, 0>, 1, 1", true},
    {"mlp-784x4096x4096x4096x10-b32", Precision::kBf16, "Placed<Bf16, Kept::kLowerHalves, 1>, 1, 2"},
    {"mlp-784x6000x4000x4000x10-b32", Precision::kBf16, "Placed<Bf16, Kept::kNothing, 1>, 1, 0"},
    {"mlp-784x8192x8192x8192x10-b32", Precision::kBf16, "Bf16, 1, 0"},
    {"mlp-784x2048x2048x10-b100", Precision::kBf16, "Bf16, 4, 0"},
    {"mlp-784x4096x4096x4096x10-b32-adam", Precision::kBf16, "WithSlots<Bf16, Adam, 1>, 1, 2", true},
    {"mlp-784x4096x4096x4096x10-b32-momentum0.9", Precision::kFp32, "WithSlots<Fp32, Momentum, 2>, 1, 2"},
    {"mlp-33x40x17x5-b17-mse-adam", Precision::kTf32,
     "WithSlots<Tf32, PlainAdam, 2, Loss::kMeanSquaredError>, 1, 1"},
    {"mlp-784x2048x2048x10-b100-adamw", Precision::kFp16, "WithSlots<Fp16, AdamW, 0>, 4, 0"}};

TEST(StreamedKernels, EachPlanTakesItsOwn) {
  for (const Case& of : kCases) {
    const auto found = streamed::plan_with_kernel(parse_workload_name(of.name), of.precision, kH200,
                                                  streamed::kUsualL2Bytes, of.hold);
    EXPECT_EQ(streamed::compiled_request(found.kernel).name, std::string("cuda-streamed ") + of.kernel)
        << of.name << ' ' << to_string(of.precision);
  }
}

void expect_to_compile(const Case& of, const std::string& folder) {
  const Workload workload = parse_workload_name(of.name);
  const jit::Cubin cubin =
      compile_streamed(workload, of.precision, kH200, folder, streamed::kUsualL2Bytes, {.hold = of.hold});
  EXPECT_GT(cubin.registers, 0);
  const bool keeps_none = of.precision != Precision::kTf32 && workload.optimizer.slots() == 0 &&
                          workload.batch_size <= streamed::kGroupRows;
  if (keeps_none) {
    EXPECT_NE(cubin.log.find(" 0 bytes stack frame"), std::string::npos) << of.kernel << cubin.log;
  }
}
/// Side by side; all of them only where they are to be kept.
TEST(StreamedKernels, RequestsCompileWithoutAGpu) {
  const std::string folder = folder_of_kept_kernels();
  std::vector<std::future<void>> compiled;
  for (const Case& of : kCases)
    if (of.in_ci || !folder.empty())
      compiled.push_back(std::async(std::launch::async, [&] { expect_to_compile(of, folder); }));
  for (std::future<void>& one : compiled) try {
      one.get();
    } catch (const UnsupportedError& error) {
      GTEST_SKIP() << error.what();
    }
}

}  // namespace
}  // namespace headroom
