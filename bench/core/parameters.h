// The weights and biases of one network, and the one generator every backend starts from.
//
// They live in one flat fp32 array, layer after layer, weight before bias, so that they cross the worker protocol
// as one block of bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headroom {

struct TensorRange {
  std::string name;    ///< "weight1", "bias1", ...; layers count from 1
  std::int64_t begin;  ///< first element in the flat array
  std::int64_t size;
};

/// The tensors of a network in flat order.
std::vector<TensorRange> tensor_ranges(const std::vector<int>& widths);

class Parameters {
 public:
  Parameters() = default;
  explicit Parameters(std::vector<int> widths);  ///< all zero

  const std::vector<int>& widths() const { return widths_; }
  int layers() const { return static_cast<int>(widths_.size()) - 1; }
  std::span<float> flat() { return values_; }
  std::span<const float> flat() const { return values_; }
  std::span<float> weight(int layer);              ///< [out, in], row-major; layer from 0
  std::span<const float> weight(int layer) const;  ///< [out, in]
  std::span<float> bias(int layer);                ///< [out]
  std::span<const float> bias(int layer) const;    ///< [out]

 private:
  std::vector<int> widths_;
  std::vector<std::int64_t> offsets_;  // of each layer's weight
  std::vector<float> values_;
};

/// Uniform in [-1/sqrt(in), 1/sqrt(in)] for weights and biases, the distribution of torch.nn.Linear
/// (Kaiming-uniform with a = sqrt(5)), drawn with Philox4x32-10 (Salmon et al., SC 2011) keyed by the seed and
/// counted by the element's position, so the same bits on every machine and thread count.
Parameters initial_parameters(const std::vector<int>& widths, std::uint64_t seed);

/// One Philox4x32-10 block: four 32-bit words for (key, counter).
struct PhiloxBlock {
  std::uint32_t word[4];
};
PhiloxBlock philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high);

}  // namespace headroom
