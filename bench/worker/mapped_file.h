// A file of values that are read where they lie, without a copy.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>

#include "core/error.h"
#include "worker/regular_file.h"

namespace headroom {

/// `count` elements of `Element`, mapped for reading. Throws InputError if the file holds another number of them.
template <typename Element>
class MappedFile {
 public:
  MappedFile(const std::filesystem::path& file, std::int64_t count)
      : bytes_(static_cast<std::size_t>(count) * sizeof(Element)) {
    const Descriptor descriptor = open_regular_file(file, O_RDONLY);
    if (!descriptor) throw InputError(file.string() + ": cannot be read: " + open_failure(errno));
    struct stat status{};
    const bool known = ::fstat(descriptor.number(), &status) == 0;
    if (!known || static_cast<std::size_t>(status.st_size) != bytes_) {
      throw InputError(file.string() + ": expected " + std::to_string(bytes_) + " bytes, found " +
                       std::to_string(status.st_size));
    }
    memory_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, descriptor.number(), 0);
    if (memory_ == MAP_FAILED)
      throw std::runtime_error(file.string() + ": cannot be mapped: " + std::strerror(errno));
  }
  ~MappedFile() { ::munmap(memory_, bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  const Element* data() const { return static_cast<const Element*>(memory_); }
  std::span<const Element> values() const { return {data(), bytes_ / sizeof(Element)}; }

 private:
  std::size_t bytes_;
  void* memory_ = nullptr;
};

}  // namespace headroom
