// Loads, stores and copies, where the CPU plays the GPU. As there, they take addresses of whole values only.
#pragma once

#include <vector_functions.h>

#include "machine.h"

namespace headroom::emulated {

/// What lies at `address`; a GPU takes no other than multiples of its size.
template <class Value>
Value& value_at(void* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(Value) != 0)
    fault("an access of " + std::to_string(sizeof(Value)) +
          " bytes to an address that is not a multiple of so many");
  return *static_cast<Value*>(address);
}
template <class Value>
const Value& value_at(const void* address) {
  return value_at<Value>(const_cast<void*>(address));
}
/// The same at an address of shared memory.
template <class Value>
Value& shared_value(std::uint32_t address) {
  return value_at<Value>(static_cast<void*>(shared_pointer(address, sizeof(Value))));
}

/// A load of what others may have stored meanwhile.
template <class Value>
Value load_polled(const void* address) {
  polled(address);
  return value_at<Value>(address);
}
/// A store or an addition that others may wait for.
template <class Value>
void store_seen(void* address, const Value& value) {
  value_at<Value>(address) = value;
  stored(address);
}
template <class Value>
void add_seen(Value* address, Value value) {
  store_seen(address, *address + value);
}

/// cp.async of 16 bytes.
inline void copy_async16(std::uint32_t destination, const void* source) {
  copy_in_group(&shared_value<uint4>(destination), &value_at<uint4>(source), sizeof(uint4));
}

}  // namespace headroom::emulated
