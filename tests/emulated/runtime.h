// Launches on the machine that the CPU plays.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace headroom::emulated {

/// Runs `thread` as every thread of such a launch, or keeps it for a graph while one is captured.
cudaError_t launch_thread(const cudaLaunchConfig_t& config, std::function<void()> thread);

/// Calls `kernel`, which has one parameter, with a copy of `argument`: for launches by a pointer (launches_by_pointer.cpp), whose
/// types are gone. A program of tests with such launches has its own.
void call_kernel(const void* kernel, const void* argument);

}  // namespace headroom::emulated
