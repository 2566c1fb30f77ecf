// The encoder is a function of the driver. It is found through the runtime, so that a program without a driver starts.
#include "machine/tensor_map.h"

#include <stdexcept>
#include <string>

#include "device/check.h"

namespace headroom::machine {
namespace {

using Encoder = decltype(&cuTensorMapEncodeTiled);

Encoder find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault,
                                              &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    throw std::runtime_error(
        "tensor map: this driver has no cuTensorMapEncodeTiled, expected one for CUDA 12");
  return reinterpret_cast<Encoder>(function);
}

/// `rank`: 2 of a matrix, 3 of slices.
CUtensorMap encode_map(cuuint32_t rank, Element element, const void* data, std::int64_t slices,
                       std::int64_t rows, std::int64_t columns, std::int64_t pitch, int box_rows) {
  static const Encoder encode = find_encoder();
  CUtensorMap map{};
  const auto type = element == Element::kBf16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                    : element == Element::kFp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  // Innermost dimension first.
  const auto unsigned_of = [](std::int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t extents[] = {unsigned_of(columns), unsigned_of(rows), unsigned_of(slices)};
  const cuuint64_t strides[] = {unsigned_of(pitch * bytes_of(element)),
                                unsigned_of(rows * pitch * bytes_of(element))};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns(element)), static_cast<cuuint32_t>(box_rows),
                            1};
  const cuuint32_t every[] = {1, 1, 1};
  const CUresult code = encode(&map, type, rank, const_cast<void*>(data), extents, strides, box, every,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    throw std::invalid_argument(
        "tensor map of [" + (rank == 3 ? std::to_string(slices) + ", " : std::string()) +
        std::to_string(rows) + ", " + std::to_string(columns) + "], pitch " + std::to_string(pitch) +
        ": driver error " + std::to_string(static_cast<int>(code)) +
        ", expected 16-byte rows of at most 2^40 bytes");
  return map;
}

}  // namespace

CUtensorMap tensor_map(Element element, const void* data, std::int64_t rows, std::int64_t columns,
                       std::int64_t pitch, int box_rows) {
  return encode_map(2, element, data, 1, rows, columns, pitch, box_rows);
}
CUtensorMap tensor_map(Element element, const void* data, std::int64_t slices, std::int64_t rows,
                       std::int64_t columns, std::int64_t pitch, int box_rows) {
  return encode_map(3, element, data, slices, rows, columns, pitch, box_rows);
}

}  // namespace headroom::machine
