// Compiles kernels that have a name, as many side by side as there are cores, and prints a line for each.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "jit/request.h"

namespace headroom {

using NamedKernels = std::map<std::string, std::function<jit::Cubin()>>;

/// Only those whose name has `words`. 1 if one has failed, else 0.
inline int compile_side_by_side(const NamedKernels& all, const std::string& words) {
  NamedKernels kernels;
  for (const auto& [name, compile] : all)
    if (name.find(words) != name.npos) kernels[name] = compile;
  std::mutex mutex;
  auto next = kernels.begin();
  std::atomic<int> failed = 0;
  const auto work = [&] {
    for (;;) {
      auto mine = kernels.end();
      {
        const std::lock_guard lock(mutex);
        if (next == kernels.end()) return;
        mine = next++;
      }
      try {
        const jit::Cubin cubin = mine->second();
        std::printf("%6.2f s  %3d registers  %7zu bytes  %s\n", cubin.seconds, cubin.registers,
                    cubin.bytes.size(), mine->first.c_str());
      } catch (const std::exception& error) {
        ++failed;
        std::printf("failed  %s: %s\n", mine->first.c_str(), error.what());
      }
      std::fflush(stdout);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return failed > 0 ? 1 : 0;
}

}  // namespace headroom
