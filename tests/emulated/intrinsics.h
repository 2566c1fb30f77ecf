// What CUDA C++ has in the global namespace, where the CPU plays the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <tuple>

#include "lanes.h"
#include "machine.h"
#include "runtime.h"
#include "values.h"

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __shared__  // declarations with it are rewritten (CMakeLists.txt)
using std::max;
using std::min;

namespace headroom::emulated {

/// A number of the running thread, asked for wherever it is read.
template <unsigned (*kOf)(const Place&)>
struct OfThread {
  operator unsigned() const { return kOf(place()); }
};
inline unsigned grid_x(const Place& of) { return of.shape->blocks / of.shape->grid_y / of.shape->grid_z; }
inline unsigned grid_y(const Place& of) { return of.shape->grid_y; }
inline unsigned grid_z(const Place& of) { return of.shape->grid_z; }
inline unsigned block_x(const Place& of) { return of.block % grid_x(of); }
inline unsigned block_y(const Place& of) { return of.block / grid_x(of) % grid_y(of); }
inline unsigned block_z(const Place& of) { return of.block / grid_x(of) / grid_y(of); }
inline unsigned thread_x(const Place& of) { return of.thread; }
inline unsigned threads_x(const Place& of) { return of.shape->threads; }

struct ThreadIndex {
  OfThread<thread_x> x;
};
struct BlockSize {
  OfThread<threads_x> x;
};
struct BlockIndex {
  OfThread<block_x> x;
  OfThread<block_y> y;
  OfThread<block_z> z;
};
struct GridSize {
  OfThread<grid_x> x;
  OfThread<grid_y> y;
  OfThread<grid_z> z;
};

/// `__shared__ Variable name;`, rewritten to Variable& name = block_variable<Variable>([] {}): every lambda's type is its own.
template <class Variable, class Unique>
Variable& block_variable(Unique /*of this declaration*/) {
  static char key;
  return *reinterpret_cast<Variable*>(block_variable(&key, sizeof(Variable)));
}

/// `kernel<<<blocks, threads, shared_bytes, stream>>>(arguments)`, rewritten to launch(kernel, ...)(arguments). As there, what
/// goes wrong is the runtime's last error.
template <class... Parameters>
auto launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, std::size_t shared_bytes = 0,
            cudaStream_t stream = nullptr) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return [=](const auto&... arguments) {
    const std::tuple<Parameters...> held(arguments...);
    launch_thread(config, [=] { std::apply(kernel, held); });
  };
}

}  // namespace headroom::emulated

inline constexpr headroom::emulated::ThreadIndex threadIdx{};
inline constexpr headroom::emulated::BlockIndex blockIdx{};
inline constexpr headroom::emulated::BlockSize blockDim{};
inline constexpr headroom::emulated::GridSize gridDim{};

// ---- launches and limits of kernels by their types, beside the runtime's functions of C

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Parameters...),
                                           const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxActiveClusters(clusters, reinterpret_cast<const void*>(kernel), config);
}
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::tuple<Parameters...> held(arguments...);
  return headroom::emulated::launch_thread(*config, [=] { std::apply(kernel, held); });
}

// ---- of a thread

inline void __syncwarp() { headroom::emulated::warp_sync(); }
inline void __syncthreads() { headroom::emulated::block_barrier(0, 0); }
inline void __threadfence() {}
template <class Value>
Value __shfl_sync(unsigned, Value value, int lane) {
  return headroom::emulated::shuffle(value, lane);
}
template <class Value>
Value __shfl_xor_sync(unsigned, Value value, int mask) {
  return headroom::emulated::shuffle_xor(value, mask);
}
inline int __all_sync(unsigned, int value) {
  headroom::emulated::with_warp("__all_sync", value, [](int* const* lanes) {
    const bool all =
        std::all_of(lanes, lanes + headroom::emulated::kWarp, [](const int* of) { return *of != 0; });
    for (int lane = 0; lane < headroom::emulated::kWarp; ++lane) *lanes[lane] = all;
  });
  return value;
}
[[noreturn]] inline void __trap() { headroom::emulated::fault("__trap"); }
template <class Value>
Value __ldg(const Value* address) {
  return headroom::emulated::value_at<Value>(address);
}
template <class Value>
Value __ldcg(const Value* address) {
  return headroom::emulated::value_at<Value>(address);
}
template <class Value>
void __stcg(Value* address, Value value) {
  headroom::emulated::value_at<Value>(address) = value;
}
template <class Value>
void __stcs(Value* address, Value value) {
  headroom::emulated::value_at<Value>(address) = value;
}
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  const unsigned before = *address;
  headroom::emulated::add_seen(address, value);
  return before;
}
inline long long clock64() {
  headroom::emulated::rest();
  return static_cast<long long>(2 * headroom::emulated::nanoseconds());
}
inline float __fdividef(float a, float b) { return a / b; }
#define __log2f(value) std::log2(value)  // that name is declared and not defined by the C library
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline long long __double_as_longlong(double value) { return std::bit_cast<long long>(value); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
/// The smaller of each two halves, without sign.
inline unsigned __vminu2(unsigned a, unsigned b) {
  return std::min(a & 0xffff, b & 0xffff) | std::min(a >> 16, b >> 16) << 16;
}
