// Launches on the machine that the CPU plays.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <functional>

namespace headroom::emulated {

/// Runs `thread` as every thread of such a launch, or keeps it for a graph while one is captured.
cudaError_t launch_thread(const cudaLaunchConfig_t& config, std::function<void()> thread);

/// Runs `work` on the host behind what was launched before, or keeps it for a graph while one is captured. Meanwhile other threads
/// may launch: it may wait for them.
cudaError_t launch_host(std::function<void()> work);

/// A call of `kernel`, which has one parameter, with a copy of `argument` as it is now: for launches by a pointer
/// (launches_by_pointer.cpp), whose types are gone. A program of tests with such launches has its own.
std::function<void()> call_of(const void* kernel, const void* argument);

/// That call where the parameter is such a struct, passed by value.
template <class Arguments>
std::function<void()> call_with(const void* kernel, const void* argument) {
  Arguments arguments;
  std::memcpy(static_cast<void*>(&arguments), argument, sizeof arguments);
  return [kernel, arguments] { reinterpret_cast<void (*)(Arguments)>(const_cast<void*>(kernel))(arguments); };
}

}  // namespace headroom::emulated
