// Which variables of the user's environment a worker gets.
#include "worker/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace headroom {
namespace {

using testing::Contains;
using testing::Not;

TEST(Environment, WhatChangesArithmeticKernelsOrImportsIsLeftOut) {
  for (const char* name : {"NVIDIA_TF32_OVERRIDE",
                           "CUBLAS_WORKSPACE_CONFIG",
                           "CUBLASLT_LOG_LEVEL",
                           "CUDNN_LOGINFO_DBG",
                           "CUDA_LAUNCH_BLOCKING",
                           "CUDA_FORCE_PTX_JIT",
                           "CUDA_DEVICE_MAX_CONNECTIONS",
                           "CUDA_MODULE_LOADING",
                           "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
                           "TORCHINDUCTOR_MAX_AUTOTUNE",
                           "TORCHDYNAMO_DISABLE",
                           "PYTORCH_CUDA_ALLOC_CONF",
                           "TRITON_PTXAS_PATH",
                           "ATEN_CPU_CAPABILITY",
                           "XLA_FLAGS",
                           "JAX_ENABLE_X64",
                           "ONEDNN_DEFAULT_FPMATH_MODE",
                           "DNNL_MAX_CPU_ISA",
                           "MKL_CBWR",
                           "MKL_ENABLE_INSTRUCTIONS",
                           "MKL_DEBUG_CPU_TYPE",
                           "NCCL_ALGO",
                           "PYTHONPATH",
                           "PYTHONHOME",
                           "PYTHONSTARTUP",
                           "PYTHONOPTIMIZE",
                           "BENCHMARK_FORMAT",
                           "HEADROOM_PLANTED_DELAY_PERCENT"})
    EXPECT_TRUE(is_left_out(name)) << name;
}

TEST(Environment, WhatSaysWhereThingsAreAndHowManyThreadsStays) {
  for (const char* name : {"PATH",
                           "HOME",
                           "LD_LIBRARY_PATH",
                           "LD_PRELOAD",
                           "CUDA_VISIBLE_DEVICES",
                           "CUDA_DEVICE_ORDER",
                           "CUDA_HOME",
                           "CUDA_PATH",
                           "CUDA_CACHE_PATH",
                           "CUDA_CACHE_MAXSIZE",
                           "CUDA_INJECTION64_PATH",
                           "NVTX_INJECTION64_PATH",
                           "LD_PRELOAD",
                           "CUDA_VERSION",
                           "NVIDIA_VISIBLE_DEVICES",
                           "OMP_NUM_THREADS",
                           "MKL_NUM_THREADS",
                           "OPENBLAS_CORETYPE",
                           "OPENBLAS_L2_SIZE",
                           "HEADROOM_ROOT",
                           "FAULT_DEVICE",
                           "FAKE_NVML",
                           "PYTHONNOUSERSITE",
                           "XDG_CACHE_HOME"})
    EXPECT_FALSE(is_left_out(name)) << name;
}

TEST(Environment, WhatTheDriverSetsItselfComesThrough) {
  ::setenv("PYTHONPATH", "/users", 1);
  ::setenv("HEADROOM_TEST_VALUE", "users", 1);
  EXPECT_THAT(left_out_names(), Contains("PYTHONPATH"));
  EXPECT_THAT(worker_environment({}), Not(Contains(testing::StartsWith("PYTHONPATH"))));
  EXPECT_THAT(worker_environment({}), Contains("HEADROOM_TEST_VALUE=users"));
  const std::vector<std::string> added =
      worker_environment({{"PYTHONPATH", "/ours"}, {"HEADROOM_TEST_VALUE", "ours"}});
  EXPECT_THAT(added, Contains("PYTHONPATH=/ours"));
  EXPECT_THAT(added, Contains("HEADROOM_TEST_VALUE=ours"));
  EXPECT_THAT(added, Not(Contains("HEADROOM_TEST_VALUE=users")));
  ::unsetenv("PYTHONPATH");
  ::unsetenv("HEADROOM_TEST_VALUE");
}

}  // namespace
}  // namespace headroom
