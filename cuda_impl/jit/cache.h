// Cubins on disk, so that the next run of the same network compiles nothing.
//
// A cubin is machine code that this user's processes will run, so the folder is the user's alone: it is made with mode 0700,
// and one that is a link, or that others own or may write to, is not used. A file is written beside its place and renamed, so
// that readers find a whole one or none; it holds a digest of itself, and what does not fit its digest is made again. Several
// processes may work in one folder at once. Where nothing can be kept, everything is compiled and nothing fails.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "jit/compiler.h"
#include "jit/request.h"

namespace headroom::jit {

class Cache {
 public:
  /// `folder` is made when something is kept. Empty: nothing is.
  explicit Cache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// The cubin that was kept under this key, whole; nullopt if there is none.
  std::optional<Cubin> find(const std::string& key) const;
  /// Whether it was kept.
  bool keep(const std::string& key, const Cubin& cubin) const;

  /// Why an existing folder is not used; nullopt if nothing speaks against it.
  std::optional<std::string> refusal() const;

 private:
  std::filesystem::path folder_;
};

/// Under what a request is kept: a digest of its text and options, all embedded headers, the compiler and the architecture.
std::string key_of(const Request& request, const Architecture& architecture, const Compiler& compiler);

/// From the cache, else compiled and kept. Throws CompileError.
Cubin compile(const Request& request, const Architecture& architecture, const Compiler& compiler,
              const Cache& cache);

}  // namespace headroom::jit
