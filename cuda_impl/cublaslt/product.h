// One matrix product of the step: its description, the kernels the library proposes for it, and the chosen one.
//
// The library's heuristics rank kernels by a model; the best of the first thirty measured on the device is often
// another, most of all at batch 32. Matrices here are column-major, as the library has them: a row-major
// [rows, columns] matrix is its [columns, rows].
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cublaslt/library.h"
#include "device/memory.h"
#include "device/stream.h"

namespace headroom::cublaslt {

/// The library's handle, and its scratch memory for one stream.
class Context {
 public:
  Context();
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Library& library() const { return library_; }
  cublasLtHandle_t handle() const { return handle_; }

 private:
  const Library& library_;
  cublasLtHandle_t handle_ = nullptr;
};

class Workspace {
 public:
  static constexpr std::int64_t kBytes = std::int64_t{32} << 20;
  Workspace() : memory_(kBytes) {}
  void* data() { return memory_.data(); }

 private:
  DeviceBuffer<char> memory_;
};

/// d [m, n] = alpha * op(a) * op(b) + beta * d, summed in fp32.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  std::int64_t a_pitch = 0, b_pitch = 0, d_pitch = 0;  ///< elements from column to column
  cudaDataType_t input_type = CUDA_R_32F, output_type = CUDA_R_32F;
  cublasComputeType_t compute_type = CUBLAS_COMPUTE_32F;
  float alpha = 1, beta = 0;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;  ///< [m], in the type of the output
  void* mask = nullptr;  ///< RELU_AUX writes and DRELU reads one bit an element, mask_pitch bits a column
  std::int64_t mask_pitch = 0;    ///< a multiple of 128
  std::uint32_t alignment = 256;  ///< of all pointers, in bytes
};

class Product {
 public:
  Product() = default;
  Product(const Context& context, const ProductShape& shape);

  /// False where the library has no kernel for it.
  bool possible() const { return !candidates_.empty(); }
  /// Times the candidates on these matrices, which are overwritten, and keeps the fastest.
  void choose(Stream& stream, Workspace& workspace, const void* a, const void* b, void* d);
  /// Seconds of the kept candidate, if choose() was called.
  double seconds() const { return seconds_; }
  void queue(const Stream& stream, Workspace& workspace, const void* a, const void* b, void* d) const;

 private:
  struct Operation {
    const Library* library;
    cublasLtMatmulDesc_t value;
    ~Operation() { (void)library->destroy_operation(value); }
  };
  struct Layout {
    const Library* library;
    cublasLtMatrixLayout_t value;
    ~Layout() { (void)library->destroy_layout(value); }
  };
  std::unique_ptr<Layout> layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                                 std::int64_t pitch) const;
  cublasStatus_t launch(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream, void* workspace,
                        const void* a, const void* b, void* d) const;
  void find_candidates();

  const Context* context_ = nullptr;
  ProductShape shape_;
  std::unique_ptr<Operation> operation_;
  std::unique_ptr<Layout> a_, b_, d_;
  std::vector<cublasLtMatmulAlgo_t> candidates_;
  std::size_t chosen_ = 0;
  double seconds_ = 0;
};

}  // namespace headroom::cublaslt
