// Flat parameter storage and the Philox generator that fills it.
//
// Element i of the flat array is word i mod 4 of the block with counter (i / 4, 0), key = seed. A word w
// becomes the odd integer 2 * (w >> 8) + 1 - 2^24, which fp32 holds exactly, over 2^24, times 1 / sqrt(in) in
// fp32: one rounding, so any language that follows this comment gets the same bits.
#include "core/parameters.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

#include "core/error.h"
#include "core/parallel.h"

namespace headroom {

std::vector<TensorRange> tensor_ranges(const std::vector<int>& widths) {
  std::vector<TensorRange> ranges;
  std::int64_t begin = 0;
  for (std::size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    const std::int64_t in = widths[layer], out = widths[layer + 1];
    const std::string number = std::to_string(layer + 1);
    ranges.push_back({"weight" + number, begin, in * out});
    ranges.push_back({"bias" + number, begin + in * out, out});
    begin += (in + 1) * out;
  }
  return ranges;
}

void* allocate_bulk(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (bytes < 8 * kHugePage) {
    void* memory = std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  void* memory = std::aligned_alloc(kHugePage, (bytes + kHugePage - 1) / kHugePage * kHugePage);
  if (memory == nullptr) throw std::bad_alloc();
  ::madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: where it is not granted all works the same
  return memory;
}

Parameters Parameters::unset(std::vector<int> widths) {
  Parameters parameters;
  parameters.widths_ = std::move(widths);
  std::int64_t size = 0;
  for (int layer = 0; layer < parameters.layers(); ++layer) {
    parameters.offsets_.push_back(size);
    size += (std::int64_t{parameters.widths_[layer]} + 1) * parameters.widths_[layer + 1];
  }
  parameters.values_.resize(static_cast<std::size_t>(size));
  return parameters;
}

Parameters::Parameters(std::vector<int> widths) : Parameters(unset(std::move(widths))) {
  parallel_for(static_cast<std::int64_t>(values_.size()), std::int64_t{1} << 20,
               [this](std::int64_t begin, std::int64_t end) {
                 std::fill(values_.begin() + begin, values_.begin() + end, 0.0f);
               });
}

std::span<float> Parameters::weight(int layer) {
  return std::span(values_).subspan(offsets_.at(layer), std::size_t(widths_[layer]) * widths_[layer + 1]);
}
std::span<const float> Parameters::weight(int layer) const {
  return std::span(values_).subspan(offsets_.at(layer), std::size_t(widths_[layer]) * widths_[layer + 1]);
}
std::span<float> Parameters::bias(int layer) {
  return std::span(values_).subspan(offsets_.at(layer) + std::size_t(widths_[layer]) * widths_[layer + 1],
                                    widths_[layer + 1]);
}
std::span<const float> Parameters::bias(int layer) const {
  return std::span(values_).subspan(offsets_.at(layer) + std::size_t(widths_[layer]) * widths_[layer + 1],
                                    widths_[layer + 1]);
}

PhiloxBlock philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  std::uint32_t key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  std::uint32_t x0 = static_cast<std::uint32_t>(counter_low);
  std::uint32_t x1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t x2 = static_cast<std::uint32_t>(counter_high);
  std::uint32_t x3 = static_cast<std::uint32_t>(counter_high >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * x0;
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * x2;
    x0 = static_cast<std::uint32_t>(product1 >> 32) ^ x1 ^ key0;
    x1 = static_cast<std::uint32_t>(product1);
    x2 = static_cast<std::uint32_t>(product0 >> 32) ^ x3 ^ key1;
    x3 = static_cast<std::uint32_t>(product0);
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return {{x0, x1, x2, x3}};
}

Parameters initial_parameters(const std::vector<int>& widths, std::uint64_t seed) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 16;  // a multiple of 4
  Parameters parameters = Parameters::unset(widths);
  const std::span<float> flat = parameters.flat();
  for (const TensorRange& range : tensor_ranges(widths)) {
    const int layer = std::stoi(range.name.substr(range.name.find_first_of("0123456789"))) - 1;
    const float bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(widths[layer])));
    // Chunks are counted from the block that holds the tensor's first element.
    const std::int64_t first_block = range.begin / 4, end = range.begin + range.size;
    parallel_for(
        (end + 3) / 4 - first_block, kChunk / 4, [&](std::int64_t block_begin, std::int64_t block_end) {
          for (std::int64_t block = first_block + block_begin; block < first_block + block_end; ++block) {
            const PhiloxBlock random = philox(seed, static_cast<std::uint64_t>(block), 0);
            for (int word = 0; word < 4; ++word) {
              const std::int64_t element = 4 * block + word;
              if (element < range.begin || element >= end) continue;
              const int odd = 2 * static_cast<int>(random.word[word] >> 8) + 1 - (1 << 24);
              flat[element] = static_cast<float>(odd) * 0x1p-24f * bound;
            }
          }
        });
  }
  return parameters;
}

void require_slots(const std::vector<Parameters>& slots, const std::vector<int>& widths, int count) {
  if (static_cast<int>(slots.size()) != count)
    throw InputError("set_slots: " + std::to_string(slots.size()) + " slots, expected " +
                     std::to_string(count));
  for (const Parameters& slot : slots)
    if (slot.widths() != widths) throw InputError("set_slots: slots of another network");
}

}  // namespace headroom
