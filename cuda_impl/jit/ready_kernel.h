// A kernel as a trainer takes it. In a header of its own, without a compiler or a cache: the tests' instances, which the CPU plays, are
// such kernels too (tests/emulated).
#pragma once

#include <memory>
#include <string>

namespace headroom::jit {

struct ReadyKernel {
  const void* function = nullptr;    ///< as the runtime's launches take it
  bool was_kept = false;             ///< by an earlier compilation
  std::string note;                  ///< for a record: how it came about
  std::shared_ptr<const void> code;  ///< keeps it loaded
};

}  // namespace headroom::jit
