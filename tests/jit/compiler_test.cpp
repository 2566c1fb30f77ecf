// Both compilers with kernels of a few lines, and what they refuse.
#include "jit/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "core/error.h"
#include "jit/cache.h"
#include "one_compiler.h"
#include "temporary.h"

namespace headroom::jit {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CompilesWith : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string reason;
    compiler = only(GetParam(), reason);
    if (compiler == nullptr) GTEST_SKIP() << reason;
  }
  CompileError error_of(const Request& request) {
    try {
      (void)compiler->compile(request, {});
    } catch (const CompileError& error) {
      return error;
    }
    return {"it was compiled", ""};
  }
  std::unique_ptr<Compiler> compiler;
};

struct Scale {
  std::int32_t count, by;
};
Request scale() {
  Request request;
  request.name = "scale by three";
  request.headers = {"machine/wait.cuh"};
  request.text = R"(
struct Scale { std::int32_t count, by; };
template <int kBy> __global__ void scale(Scale what, float* values) {
  __shared__ float first;
  if (threadIdx.x == 0) first = values[0];
  __syncthreads();
  for (int i = threadIdx.x; i < what.count; i += blockDim.x) values[i] = values[i] * kBy + first * ADDED;
})";
  request.kernel = "scale<3>";
  request.constants = {{"ADDED", "2"}};
  request.argument_type = "Scale";
  request.argument_bytes = sizeof(Scale);
  return request;
}

TEST_P(CompilesWith, GivesTheKernelByItsNameAndWhatItTakes) {
  const Cubin cubin = compiler->compile(scale(), {});
  EXPECT_EQ(cubin.kernel, "_Z5scaleILi3EEv5ScalePf");
  EXPECT_THAT(std::string(cubin.bytes.begin(), cubin.bytes.end()),
              HasSubstr(".text._Z5scaleILi3EEv5ScalePf"));
  EXPECT_GT(cubin.registers, 0);
  // The compiler keeps 1 KB for itself where an architecture wants it.
  EXPECT_EQ(cubin.shared_bytes % 1024, 4);
}

TEST_P(CompilesWith, GivesTheSameBytesFromTheCache) {
  const TestFolder folder;
  const Cache cache(folder.path() / "cubins");
  const Cubin first = jit::compile(scale(), {}, compiler.get(), cache);
  const Cubin second = jit::compile(scale(), {}, compiler.get(), cache);
  EXPECT_FALSE(first.was_kept);
  EXPECT_TRUE(second.was_kept);
  EXPECT_EQ(first.bytes, second.bytes);
}

TEST_P(CompilesWith, AnErrorNamesTheKernelAndShowsTheFirstLinesOfTheLog) {
  Request request = scale();
  request.constants.clear();
  const CompileError error = error_of(request);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("kernel 'scale by three' was not compiled by " + compiler->name() + ": "),
                    HasSubstr("kernel.cu("), HasSubstr("\"ADDED\" is undefined"), Not(HasSubstr("\n"))));
  EXPECT_THAT(error.log(), HasSubstr("ADDED"));
}

TEST_P(CompilesWith, RefusesAKernelThatSpillsRegisters) {
  Request request;
  request.name = "greedy";
  request.text = R"(
__global__ void greedy(float* values) {
  float kept[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) kept[i] = values[i * 32 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) values[(63 - i) * 32 + threadIdx.x] = kept[i] * kept[(i * 7) % 64];
})";
  request.kernel = "greedy";
  EXPECT_NO_THROW(compiler->compile(request, {}));
  request.options = {"-maxrregcount=32"};
  EXPECT_THAT(error_of(request).what(),
              AllOf(HasSubstr("kernel 'greedy': must not be used, as it keeps values in local memory: "),
                    HasSubstr("bytes spill stores")));
}

TEST_P(CompilesWith, RefusesAnArgumentOfAnotherSize) {
  Request request = scale();
  request.argument_bytes = 12;
  EXPECT_THAT(error_of(request).what(), HasSubstr("the kernel's argument has another size here"));
}

TEST_P(CompilesWith, FindsWhatKernelsTakeFromTheStandardLibraryAndTheToolkit) {
  Request request;
  request.name = "borrowed";
  request.text = R"(
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstddef>
#include <cstdint>
#include <type_traits>
static_assert(sizeof(std::int64_t) == 8 && sizeof(std::size_t) == 8);
static_assert(std::is_same_v<std::remove_cvref_t<const float&>, std::conditional_t<true, float, int>>);
__global__ void borrowed(float* out, __half half, __nv_bfloat16 bfloat) {
  out[0] = -INFINITY;
  out[1] = NAN;
  out[2] = __half2float(half) + __bfloat162float(bfloat);
})";
  request.kernel = "borrowed";
  EXPECT_NO_THROW(compiler->compile(request, {}));
}

TEST_P(CompilesWith, TakesWordsOfAPlanAsAConstant) {
  Request request;
  request.name = "constant";
  request.headers = {"machine/wait.cuh"};
  request.text = R"(
struct Plan { std::int32_t rows; std::int32_t by; };
struct Words { std::uint32_t words[2]; };
constexpr Plan kPlan = __builtin_bit_cast(Plan, Words{{PLAN}});
static_assert(kPlan.rows == 7 && kPlan.by == -2);
__global__ void constant(int* out) { *out = kPlan.rows * kPlan.by; })";
  request.kernel = "constant";
  request.constants = {{"PLAN", as_words(Scale{7, -2})}};
  EXPECT_NO_THROW(compiler->compile(request, {}));
}

INSTANTIATE_TEST_SUITE_P(Compilers, CompilesWith, testing::Values("nvcc", "nvrtc"),
                         [](const auto& test) { return std::string(test.param); });

TEST(FindCompiler, SaysWhatIsMissingWhereThereIsNone) {
  const WithoutVariable no_nvcc("HEADROOM_NVCC"), no_nvrtc("HEADROOM_NVRTC");
  EXPECT_THROW(
      {
        try {
          find_compiler();
        } catch (const UnsupportedError& error) {
          EXPECT_THAT(error.what(), AllOf(HasSubstr("no compiler for kernels"), HasSubstr("HEADROOM_NVCC")));
          throw;
        }
      },
      UnsupportedError);
}

TEST(FindCompiler, RefusesAProgramThatIsNoNvcc) { EXPECT_THROW(make_nvcc("/bin/true"), std::runtime_error); }

TEST(CompilersLog, OfSerialisedProductsIsRefused) {
  Request request;
  request.name = "products";
  Cubin cubin;
  const std::string log =
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due "
      "to "
      "insufficient register resources in function 'k'\n"
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n";
  try {
    internal::read_log(request, log, cubin);
    FAIL() << "it was accepted";
  } catch (const CompileError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("kernel 'products': must not be used: ptxas info"),
                                    HasSubstr("instructions are serialized"), Not(HasSubstr("Compiling"))));
  }
}

TEST(CompilersLog, OfTwoKernelsIsRefused) {
  Cubin cubin;
  EXPECT_THROW(internal::read_log({}, "Compiling entry function 'a'\nCompiling entry function 'b'\n", cubin),
               CompileError);
}

}  // namespace
}  // namespace headroom::jit
