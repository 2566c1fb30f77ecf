#include "jit/cache.h"

#include <chrono>
#include <cstdio>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "jit/digest.h"
#include "jit/kernel.h"
#include "jit/sources.h"

namespace headroom::jit {
namespace {

constexpr std::string_view kFirstLine = "headroom cubin 1\n";
constexpr std::size_t kDigestDigits = 64;
constexpr std::string_view kEnding = ".cubin";
std::string file_name(const std::string& key) { return key + std::string(kEnding); }

std::string encode(const Cubin& cubin) {
  std::string body = cubin.kernel + "\n" + cubin.compiler + "\n" + std::to_string(cubin.registers) + " " +
                     std::to_string(cubin.shared_bytes) + " " + std::to_string(cubin.log.size()) + "\n" +
                     cubin.log;
  body.append(cubin.bytes.begin(), cubin.bytes.end());
  return std::string(kFirstLine) + sha256(body) + "\n" + body;
}

std::optional<Cubin> decode(std::string_view file) {
  const auto take = [&](std::size_t count) {
    const std::string_view part = file.substr(0, count);
    file.remove_prefix(part.size());
    return part;
  };
  const auto take_line = [&] {
    const std::string_view line = take(file.find('\n'));
    take(1);
    return line;
  };
  if (take(kFirstLine.size()) != kFirstLine) return std::nullopt;
  const std::string_view digest = take_line();
  if (digest.size() != kDigestDigits || sha256(file) != digest) return std::nullopt;
  // From here on it is what encode() wrote.
  Cubin cubin;
  cubin.kernel = take_line();
  cubin.compiler = take_line();
  std::size_t log_bytes = 0;
  if (std::sscanf(std::string(take_line()).c_str(), "%d %d %zu", &cubin.registers, &cubin.shared_bytes,
                  &log_bytes) != 3)
    return std::nullopt;
  cubin.log = take(log_bytes);
  cubin.bytes.assign(file.begin(), file.end());
  return cubin;
}

std::optional<Cubin> decode(const std::optional<std::string>& file) {
  return file ? decode(std::string_view(*file)) : std::nullopt;
}

}  // namespace

std::optional<Cubin> Cache::find(const std::string& key) const { return decode(files_.find(file_name(key))); }

std::optional<Cubin> Cache::find_of_any_compiler(const std::string& request) const {
  for (const std::string& name : files_.names()) {
    if (!name.starts_with(request + "-") || !name.ends_with(kEnding)) continue;
    if (std::optional<Cubin> found = decode(files_.find(name))) return found;
  }
  return std::nullopt;
}

bool Cache::keep(const std::string& key, const Cubin& cubin) const {
  return files_.keep(file_name(key), encode(cubin));
}

Cache cubins_in(const std::string& cache_folder) {
  return Cache(cache_folder.empty() ? std::filesystem::path()
                                    : std::filesystem::path(cache_folder) / "cubins");
}

std::string note_of(const Cubin& cubin) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2f", cubin.seconds);
  return (cubin.was_kept ? "its kernel was kept, of "
                         : "its kernel was compiled in " + std::string(seconds) + " s by ") +
         cubin.compiler + ", " + std::to_string(cubin.registers) + " registers";
}

ReadyKernel ready(const Cubin& cubin) {
  const auto kernel = std::make_shared<const Kernel>(cubin);
  return {.function = kernel->handle(), .was_kept = cubin.was_kept, .note = note_of(cubin), .code = kernel};
}

std::string digest_of(const Request& request, const Architecture& architecture) {
  static const std::string sources = [] {
    Digest digest;
    for (const Source& source : embedded_sources()) {
      digest.add(source.name);
      digest.add(source.text);
    }
    return digest.hex();
  }();
  Digest digest;
  digest.add(sources);
  digest.add(architecture.name());
  digest.add(program_text(request));
  digest.add(request.kernel);
  for (const std::string& option : request.options) digest.add(option);
  return digest.hex();
}

std::string key_of(const Request& request, const Architecture& architecture, const Compiler& compiler) {
  return digest_of(request, architecture) + "-" + sha256(compiler.identity());
}

Cubin compile(const Request& request, const Architecture& architecture, const Compiler* compiler,
              const Cache& cache) {
  const auto start = std::chrono::steady_clock::now();
  std::optional<Cubin> kept = compiler == nullptr
                                  ? cache.find_of_any_compiler(digest_of(request, architecture))
                                  : cache.find(key_of(request, architecture, *compiler));
  if (!kept && compiler == nullptr)
    throw UnsupportedError("kernel '" + request.name +
                           "' is not in the cache, and no compiler is here; install nvcc and g++, or NVRTC");
  Cubin cubin = kept ? std::move(*kept) : compiler->compile(request, architecture);
  cubin.was_kept = kept.has_value();
  if (!cubin.was_kept) {
    cubin.compiler = compiler->name();
    (void)cache.keep(key_of(request, architecture, *compiler), cubin);
  }
  cubin.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return cubin;
}

}  // namespace headroom::jit
