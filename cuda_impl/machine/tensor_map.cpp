// The encoder is a function of the driver. It is found through the runtime, so that a program without a driver starts.
#include "machine/tensor_map.h"

#include <algorithm>
#include <iterator>
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

/// A tensor of up to four dimensions, innermost first; strides: bytes from one to the next, of all but the innermost.
struct Tensor {
  int rank;
  std::int64_t extents[4], strides[3];
  int box[4];
};

CUtensorMap encode_map(Element element, const void* data, const Tensor& tensor) {
  static const Encoder encode = find_encoder();
  CUtensorMap map{};
  const auto type = element == Element::kBf16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                    : element == Element::kFp16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  cuuint64_t extents[4], strides[3];
  cuuint32_t box[4];
  std::copy(std::begin(tensor.extents), std::end(tensor.extents), extents);
  std::copy(std::begin(tensor.strides), std::end(tensor.strides), strides);
  std::copy(std::begin(tensor.box), std::end(tensor.box), box);
  const cuuint32_t every[] = {1, 1, 1, 1};
  const CUresult code =
      encode(&map, type, static_cast<cuuint32_t>(tensor.rank), const_cast<void*>(data), extents, strides, box,
             every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code == CUDA_SUCCESS) return map;
  std::string shape;
  for (int dimension = tensor.rank - 1; dimension >= 0; --dimension)
    shape += (shape.empty() ? "" : ", ") + std::to_string(tensor.extents[dimension]);
  throw std::invalid_argument("tensor map of [" + shape + "], rows of " + std::to_string(tensor.strides[0]) +
                              " bytes: driver error " + std::to_string(static_cast<int>(code)) +
                              ", expected 16-byte rows of at most 2^40 bytes");
}

}  // namespace

CUtensorMap tensor_map(Element element, const void* data, std::int64_t rows, std::int64_t columns,
                       std::int64_t pitch, int box_rows) {
  return encode_map(element, data,
                    {.rank = 2,
                     .extents = {columns, rows},
                     .strides = {pitch * bytes_of(element)},
                     .box = {box_columns(element), box_rows}});
}
CUtensorMap tensor_map(Element element, const void* data, std::int64_t slices, std::int64_t rows,
                       std::int64_t columns, std::int64_t pitch, int box_rows, std::int64_t slice_rows) {
  const std::int64_t row = pitch * bytes_of(element);
  return encode_map(element, data,
                    {.rank = 3,
                     .extents = {columns, rows, slices},
                     .strides = {row, (slice_rows > 0 ? slice_rows : rows) * row},
                     .box = {box_columns(element), box_rows, 1}});
}
CUtensorMap tensor_map_of_panels(Element element, const void* data, std::int64_t slices, std::int64_t rows,
                                 std::int64_t columns, std::int64_t pitch, int box_rows, int box_panels,
                                 std::int64_t slice_rows) {
  const std::int64_t row = pitch * bytes_of(element), across = box_columns(element);
  const std::int64_t panels = (columns + across - 1) / across;
  if (panels > 1 && pitch < panels * across)
    throw std::invalid_argument("tensor map of panels: rows of " + std::to_string(pitch) +
                                " values do not hold " + std::to_string(panels) + " whole panels");
  return encode_map(element, data,
                    {.rank = 4,
                     .extents = {std::min(columns, across), rows, panels, slices},
                     .strides = {row, across * bytes_of(element), (slice_rows > 0 ? slice_rows : rows) * row},
                     .box = {static_cast<int>(across), box_rows, box_panels, 1}});
}

}  // namespace headroom::machine
