// What the CUDA worker program must not contain: the vendor's kernels, which it is compared with. NVRTC is a compiler and holds none.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace headroom {
namespace {

// Symbols, names of needed libraries and strings all lie in the file as they are.
TEST(CudaWorker, HoldsNoTraceOfAVendorLibrary) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "headroom-cuda-worker";
  std::ifstream file(program, std::ios::binary);
  ASSERT_TRUE(file) << program;
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_NE(bytes.find("cuda-layered"), std::string::npos) << "not the worker: " << program;
  std::transform(bytes.begin(), bytes.end(), bytes.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string library : {"cublas", "cudnn", "cutlass"})
    EXPECT_EQ(bytes.find(library), std::string::npos) << library;
}

}  // namespace
}  // namespace headroom
