// Files of fp32 values, read and written on all cores: a large network's parameters are gigabytes, and one core copies
// them at a fraction of the memory's speed.
//
// The kernel lets one thread at a time write to a file, so a large one in memory is mapped and filled as memory is.
#include "worker/float_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "core/error.h"
#include "core/parallel.h"
#include "worker/regular_file.h"

namespace headroom {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;

[[noreturn]] void fail(const std::filesystem::path& file, const char* what, int error) {
  throw std::runtime_error(file.string() + ": " + what + ": " + std::strerror(error));
}

Descriptor opened(const std::filesystem::path& file, int flags, const char* what) {
  Descriptor descriptor = open_regular_file(file, flags);
  if (!descriptor) throw std::runtime_error(file.string() + ": " + what + ": " + open_failure(errno));
  return descriptor;
}

/// An open file in memory, to be filled by many threads; write() says no where it is none, or a small one.
class FileInMemory {
 public:
  FileInMemory(int descriptor, std::size_t bytes) : bytes_(bytes) {
    struct statfs system{};
    if (bytes <= kPieceBytes || ::fstatfs(descriptor, &system) != 0 || system.f_type != TMPFS_MAGIC) return;
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  ~FileInMemory() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, bytes_);
  }
  FileInMemory(const FileInMemory&) = delete;
  FileInMemory& operator=(const FileInMemory&) = delete;

  bool write(const char* bytes, std::size_t size, std::int64_t offset) const {
    constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers lack
    if (memory_ == MAP_FAILED) return false;
    char* place = static_cast<char*>(memory_) + offset;
    // Asked for beforehand, pages that cannot be had are no signal in the midst of the copy. Of a file in memory those found
    // for reading may be written too, and they are found several at once.
    if (::madvise(place, size, kPopulateRead) != 0) return false;
    std::memcpy(place, bytes, size);
    return true;
  }

 private:
  std::size_t bytes_;
  void* memory_ = MAP_FAILED;
};

// Calls transfer(bytes, size, offset), a pread or pwrite, until every byte has gone.
template <typename Byte, typename Transfer>
void transfer_all(const std::filesystem::path& file, const char* what, Byte* bytes, std::int64_t size,
                  const Transfer& transfer) {
  parallel_for(size, kPieceBytes, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const ssize_t done = transfer(bytes + begin, static_cast<std::size_t>(end - begin), begin);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail(file, what, done < 0 ? errno : EIO);
      begin += done;
    }
  });
}

template <typename Value>
std::size_t bytes_of(std::span<const std::span<Value>> parts) {
  std::size_t bytes = 0;
  for (const auto& part : parts) bytes += part.size_bytes();
  return bytes;
}

void write_parts(const std::filesystem::path& file, std::span<const std::span<const float>> parts) try {
  constexpr const char* kWhat = "cannot be written";
  const std::size_t bytes = bytes_of(parts);
  // Not emptied first: a file in memory that is written again would have to find its pages anew.
  Descriptor out = opened(file, O_RDWR | O_CREAT, kWhat);
  if (::ftruncate(out.number(), static_cast<off_t>(bytes)) != 0) fail(file, kWhat, errno);
  const FileInMemory in_memory(out.number(), bytes);
  std::int64_t begin = 0;
  for (const std::span<const float> part : parts) {
    const auto size = static_cast<std::int64_t>(part.size_bytes());
    transfer_all(file, kWhat, reinterpret_cast<const char*>(part.data()), size,
                 [&](const char* from, std::size_t count, std::int64_t offset) {
                   if (in_memory.write(from, count, begin + offset)) return static_cast<ssize_t>(count);
                   return ::pwrite(out.number(), from, count, begin + offset);
                 });
    begin += size;
  }
  if (!out.close()) fail(file, kWhat, errno);
} catch (const std::runtime_error& error) {
  throw OutputError(error.what());
}

void read_parts(const std::filesystem::path& file, std::span<const std::span<float>> parts) {
  constexpr const char* kWhat = "cannot be read";
  const std::size_t bytes = bytes_of(parts);
  const Descriptor in = opened(file, O_RDONLY, kWhat);
  struct stat status{};
  if (::fstat(in.number(), &status) != 0) fail(file, kWhat, errno);
  if (static_cast<std::size_t>(status.st_size) != bytes) {
    throw std::runtime_error(file.string() + ": expected " + std::to_string(bytes / sizeof(float)) +
                             " fp32 values, found " + std::to_string(status.st_size) + " bytes");
  }
  std::int64_t begin = 0;
  for (const std::span<float> part : parts) {
    const auto size = static_cast<std::int64_t>(part.size_bytes());
    transfer_all(file, kWhat, reinterpret_cast<char*>(part.data()), size,
                 [&](char* into, std::size_t count, std::int64_t offset) {
                   return ::pread(in.number(), into, count, begin + offset);
                 });
    begin += size;
  }
}

}  // namespace

void write_floats(const std::filesystem::path& file, std::span<const float> values) {
  write_parts(file, {&values, 1});
}

void read_floats(const std::filesystem::path& file, std::span<float> values) {
  read_parts(file, {&values, 1});
}

void write_state(const std::filesystem::path& file, const State& state) {
  std::vector<std::span<const float>> parts = {state.parameters.flat()};
  for (const Parameters& slot : state.slots) parts.push_back(slot.flat());
  write_parts(file, parts);
}

void read_state(const std::filesystem::path& file, State& state) {
  std::vector<std::span<float>> parts = {state.parameters.flat()};
  for (Parameters& slot : state.slots) parts.push_back(slot.flat());
  read_parts(file, parts);
}

std::int64_t value_count(const State& state) {
  return std::ssize(state.parameters.flat()) * (1 + std::ssize(state.slots));
}

std::vector<float> read_floats(const std::filesystem::path& file, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  read_floats(file, std::span(values));
  return values;
}

}  // namespace headroom
