#include "worker/float_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

namespace headroom {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

[[noreturn]] void fail(const std::filesystem::path& file, const char* what) {
  throw std::runtime_error(file.string() + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

void write_floats(const std::filesystem::path& file, std::span<const float> values) {
  std::unique_ptr<std::FILE, CloseFile> stream(std::fopen(file.c_str(), "wbe"));
  if (!stream) fail(file, "cannot be written");
  if (std::fwrite(values.data(), sizeof(float), values.size(), stream.get()) != values.size()) {
    fail(file, "cannot be written");
  }
  if (std::fclose(stream.release()) != 0) fail(file, "cannot be written");  // a full disk may show only here
}

std::vector<float> read_floats(const std::filesystem::path& file, std::int64_t count) {
  std::unique_ptr<std::FILE, CloseFile> stream(std::fopen(file.c_str(), "rbe"));
  if (!stream) fail(file, "cannot be read");
  const std::uintmax_t bytes = std::filesystem::file_size(file);
  if (bytes != static_cast<std::uintmax_t>(count) * sizeof(float)) {
    throw std::runtime_error(file.string() + ": expected " + std::to_string(count) + " fp32 values, found " +
                             std::to_string(bytes) + " bytes");
  }
  std::vector<float> values(static_cast<std::size_t>(count));
  if (std::fread(values.data(), sizeof(float), values.size(), stream.get()) != values.size()) {
    fail(file, "cannot be read");
  }
  return values;
}

}  // namespace headroom
