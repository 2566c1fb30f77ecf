// The weights and biases of one network, and the one generator every backend starts from.
//
// They live in one flat fp32 array, layer after layer, weight before bias, so that they cross the worker protocol
// as one block of bytes.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace headroom {

struct TensorRange {
  std::string name;    ///< "weight1", "bias1", ...; layers count from 1
  std::int64_t begin;  ///< first element in the flat array
  std::int64_t size;
};

/// The tensors of a network in flat order.
std::vector<TensorRange> tensor_ranges(const std::vector<int>& widths);

/// To be given back with free(). Throws std::bad_alloc.
void* allocate_bulk(std::size_t bytes);

/// Memory for a vector that all cores fill: what it grows by is left unset, since one core would take longer to write
/// zeros there than all of them to read a large network's file, and large blocks ask for huge pages, as finding small ones
/// takes longer still.
template <typename T>
struct BulkAllocator {
  using value_type = T;
  BulkAllocator() = default;
  template <typename U>
  BulkAllocator(const BulkAllocator<U>&) {}

  T* allocate(std::size_t count) { return static_cast<T*>(allocate_bulk(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  template <typename U>
  void construct(U* place) {
    ::new (static_cast<void*>(place)) U;
  }
  template <typename U, typename... Arguments>
  void construct(U* place, Arguments&&... arguments) {
    ::new (static_cast<void*>(place)) U(std::forward<Arguments>(arguments)...);
  }
  friend bool operator==(const BulkAllocator&, const BulkAllocator&) { return true; }
};
class Parameters {
 public:
  Parameters() = default;
  explicit Parameters(std::vector<int> widths);      ///< all zero
  static Parameters unset(std::vector<int> widths);  ///< for values that are written or read next

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
  std::vector<float, BulkAllocator<float>> values_;
};

/// All that training changes: the parameters, and for each of the optimizer's slots as many values.
struct State {
  Parameters parameters;
  std::vector<Parameters> slots;

  /// For values that are read next.
  static State unset(const std::vector<int>& widths, int slots) {
    State state{Parameters::unset(widths), {}};
    for (int slot = 0; slot < slots; ++slot) state.slots.push_back(Parameters::unset(widths));
    return state;
  }
  /// The parameters at step 0, with `slots` slots of zeros.
  static State initial(Parameters parameters, int slots) {
    State state{std::move(parameters), {}};
    for (int slot = 0; slot < slots; ++slot) state.slots.emplace_back(state.parameters.widths());
    return state;
  }
};

/// Throws InputError unless these are `count` slots of a network of these widths.
void require_slots(const std::vector<Parameters>& slots, const std::vector<int>& widths, int count);

/// A network whose values lie elsewhere, such as in a mapped file.
struct ParametersView {
  ParametersView(const Parameters& parameters)  // NOLINT(google-explicit-constructor)
      : widths(parameters.widths()), flat(parameters.flat()) {}
  ParametersView(const std::vector<int>& network, std::span<const float> values)
      : widths(network), flat(values) {}

  const std::vector<int>& widths;
  std::span<const float> flat;
};

/// The same of a state.
struct StateView {
  StateView(const State& state)  // NOLINT(google-explicit-constructor)
      : parameters(state.parameters), slots(state.slots.begin(), state.slots.end()) {}
  /// `values`: the parameters, and each slot behind them.
  StateView(const std::vector<int>& network, std::span<const float> values, int slot_count)
      : parameters(network, values.first(values.size() / static_cast<std::size_t>(slot_count + 1))) {
    for (int slot = 1; slot <= slot_count; ++slot)
      slots.emplace_back(network, values.subspan(static_cast<std::size_t>(slot) * parameters.flat.size(),
                                                 parameters.flat.size()));
  }

  ParametersView parameters;
  std::vector<ParametersView> slots;
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
