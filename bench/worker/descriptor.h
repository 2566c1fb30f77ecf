// A file descriptor that is closed once, by its owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace headroom {

class Descriptor {
 public:
  Descriptor() = default;
  /// Takes over `number`; a negative one, as a failed call gives it, is no descriptor. Leaves errno alone.
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  explicit operator bool() const { return number_ >= 0; }
  int number() const { return number_; }
  /// The number, which is the caller's to close now.
  int release() { return std::exchange(number_, -1); }
  /// False, with the reason in errno, if the system could not: some file systems report a full disk only here.
  bool close() { return number_ < 0 || ::close(release()) == 0; }

 private:
  int number_ = -1;
};

}  // namespace headroom
