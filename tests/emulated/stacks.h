// Stacks for fibers, kept from launch to launch: to map 50,000 of them takes longer than a small launch.
#pragma once

#include <sys/mman.h>

#include <boost/context/preallocated.hpp>
#include <boost/context/stack_context.hpp>
#include <cstddef>
#include <new>
#include <vector>

namespace headroom::emulated {

class Stacks {
 public:
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() {
    for (void* chunk : chunks_) munmap(chunk, kChunk * kBytes);
  }

  boost::context::preallocated at(std::size_t index) {
    while (index / kChunk >= chunks_.size()) {
      void* chunk = mmap(nullptr, kChunk * kBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (chunk == MAP_FAILED) throw std::bad_alloc();
      chunks_.push_back(chunk);
    }
    boost::context::stack_context stack;
    stack.size = kBytes;
    stack.sp = static_cast<unsigned char*>(chunks_[index / kChunk]) + (index % kChunk + 1) * kBytes;
    return {stack.sp, stack.size, stack};
  }
  /// What boost asks of a stack's owner.
  struct Owner {
    boost::context::stack_context allocate() { throw std::bad_alloc(); }
    void deallocate(boost::context::stack_context&) {}
  };

 private:
  static constexpr std::size_t kBytes = 128 << 10;  // pages that nobody touches cost nothing
  static constexpr std::size_t kChunk = 256;
  std::vector<void*> chunks_;
};

}  // namespace headroom::emulated
