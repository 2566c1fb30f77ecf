// cuBLASLt on a GPU that the CPU plays: one kernel for every product, a plain loop with sums in double.
//
// It has the endings that cublaslt-graph asks for: bias, ReLU, ReLU's mask written and applied. Results are written where a launch of
// the library's would write them, so that what is captured is captured.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cublaslt/library.h"
#include "layered/formats.h"
#include "oracle/precision_rounding.h"
#include "runtime.h"

namespace headroom::cublaslt {
namespace {

struct Operation {
  cublasComputeType_t compute;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const float* bias = nullptr;
  std::uint32_t* mask = nullptr;
  std::int64_t mask_pitch = 0;  // bits
};
/// Column-major.
struct Layout {
  cudaDataType_t type;
  std::int64_t rows, columns, pitch;
};

double read(const void* data, const Layout& layout, std::int64_t row, std::int64_t column) {
  const std::int64_t at = column * layout.pitch + row;
  if (layout.type == CUDA_R_16F) return layered::to_float(static_cast<const __half*>(data)[at]);
  if (layout.type == CUDA_R_16BF) return layered::to_float(static_cast<const __nv_bfloat16*>(data)[at]);
  return static_cast<const float*>(data)[at];
}
void write(void* data, const Layout& layout, std::int64_t row, std::int64_t column, double value) {
  const std::int64_t at = column * layout.pitch + row;
  const auto single = static_cast<float>(value);
  if (layout.type == CUDA_R_16F)
    static_cast<__half*>(data)[at] = layered::Fp16::round(single);
  else if (layout.type == CUDA_R_16BF)
    static_cast<__nv_bfloat16*>(data)[at] = layered::Bf16::round(single);
  else
    static_cast<float*>(data)[at] = single;
}

struct Matmul {
  Operation operation;
  Layout a, b, d;
  const void *a_data, *b_data;
  void* d_data;
  float alpha, beta;

  void operator()() const {
    for (std::int64_t column = 0; column < d.columns; ++column)
      for (std::int64_t row = 0; row < d.rows; ++row) write(d_data, d, row, column, ended(row, column));
  }
  double sum(std::int64_t row, std::int64_t column) const {
    const bool a_across = operation.a == CUBLAS_OP_T, b_across = operation.b == CUBLAS_OP_T;
    const std::int64_t inner = a_across ? a.rows : a.columns;
    const auto rounded = [&](double value) {
      return operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? round_to_tf32(value) : value;
    };
    double total = 0;
    for (std::int64_t k = 0; k < inner; ++k)
      total += rounded(a_across ? read(a_data, a, k, row) : read(a_data, a, row, k)) *
               rounded(b_across ? read(b_data, b, column, k) : read(b_data, b, k, column));
    return total;
  }
  double ended(std::int64_t row, std::int64_t column) const {
    double value = alpha * sum(row, column);
    if (beta != 0) value += beta * read(d_data, d, row, column);
    if (operation.bias != nullptr) value += operation.bias[row];
    const std::int64_t bit = column * operation.mask_pitch + row;
    switch (operation.epilogue) {
      case CUBLASLT_EPILOGUE_RELU_BIAS:
        return value < 0 ? 0 : value;
      case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
        operation.mask[bit / 32] =
            (operation.mask[bit / 32] & ~(1u << bit % 32)) | (value > 0 ? 1u << bit % 32 : 0u);
        return value < 0 ? 0 : value;
      case CUBLASLT_EPILOGUE_DRELU:
        return (operation.mask[bit / 32] >> bit % 32 & 1) != 0 ? value : 0;
      default:
        return value;
    }
  }
};

template <class To, class From>
To* as(From* pointer) {
  return reinterpret_cast<To*>(pointer);
}

cublasStatus_t create(cublasLtHandle_t* handle) {
  *handle = as<std::remove_pointer_t<cublasLtHandle_t>>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasLtHandle_t handle) {
  delete as<int>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t version() { return 10000; }
const char* status_string(cublasStatus_t) { return "an error of the emulated library"; }
cublasStatus_t create_operation(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                cudaDataType_t) {
  *operation = as<std::remove_pointer_t<cublasLtMatmulDesc_t>>(new Operation{.compute = compute});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy_operation(cublasLtMatmulDesc_t operation) {
  delete as<Operation>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_operation(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
                             const void* value, std::size_t bytes) {
  auto& operation = *as<Operation>(description);
  const auto set = [&](auto& field) {
    if (bytes != sizeof field) throw std::logic_error("set_operation: size of the value");
    std::copy_n(static_cast<const char*>(value), bytes, reinterpret_cast<char*>(&field));
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      set(operation.a);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      set(operation.b);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      set(operation.epilogue);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      set(operation.bias);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      set(operation.mask);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      set(operation.mask_pitch);
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t create_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, std::uint64_t rows,
                             std::uint64_t columns, std::int64_t pitch) {
  *layout = as<std::remove_pointer_t<cublasLtMatrixLayout_t>>(
      new Layout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), pitch});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy_layout(cublasLtMatrixLayout_t layout) {
  delete as<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t create_preference(cublasLtMatmulPreference_t* preference) {
  *preference = as<std::remove_pointer_t<cublasLtMatmulPreference_t>>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy_preference(cublasLtMatmulPreference_t preference) {
  delete as<int>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_preference(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*,
                              std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t heuristics(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                          cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                          cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t* results,
                          int* found) {
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t matmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                      cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                      const void* beta, const void*, cublasLtMatrixLayout_t, void* d,
                      cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t*, void*, std::size_t,
                      cudaStream_t stream) {
  cudaLaunchConfig_t one{};
  one.gridDim = one.blockDim = dim3(1);
  one.stream = stream;
  const Matmul work{*as<Operation>(operation),
                    *as<Layout>(a_layout),
                    *as<Layout>(b_layout),
                    *as<Layout>(d_layout),
                    a,
                    b,
                    d,
                    *static_cast<const float*>(alpha),
                    *static_cast<const float*>(beta)};
  return emulated::launch_thread(one, work) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                           : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

const Library* find_library(std::string*) {
  static const Library library = {
      .create = create,
      .destroy = destroy,
      .version = version,
      .status_string = status_string,
      .matmul = matmul,
      .heuristics = heuristics,
      .create_operation = create_operation,
      .destroy_operation = destroy_operation,
      .set_operation = set_operation,
      .create_layout = create_layout,
      .destroy_layout = destroy_layout,
      .create_preference = create_preference,
      .destroy_preference = destroy_preference,
      .set_preference = set_preference,
  };
  return &library;
}
const char* library_file() { return "the emulated library"; }
std::string library_version() { return "emulated"; }
void check_cublaslt(cublasStatus_t status, const char* call, const char*, int) {
  if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(call);
}

}  // namespace headroom::cublaslt
