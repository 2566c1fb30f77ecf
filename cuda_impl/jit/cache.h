// Cubins on disk, so that the next run of the same network compiles nothing.
//
// A cubin is machine code that this user's processes will run, so it is kept where nobody else may write (kept_files.h). It holds a
// digest of itself, and what does not fit its digest is made again. Where nothing can be kept, everything is compiled and nothing
// fails.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "jit/compiler.h"
#include "jit/kept_files.h"
#include "jit/ready_kernel.h"
#include "jit/request.h"

namespace headroom::jit {

class Cache {
 public:
  /// `folder` is made when something is kept. Empty: nothing is.
  explicit Cache(std::filesystem::path folder) : files_(std::move(folder)) {}

  /// The cubin that was kept under this key, whole; nullopt if there is none.
  std::optional<Cubin> find(const std::string& key) const;
  /// One that any compiler made of the request with this digest.
  std::optional<Cubin> find_of_any_compiler(const std::string& request) const;
  /// Whether it was kept.
  bool keep(const std::string& key, const Cubin& cubin) const;

  /// Why an existing folder is not used; nullopt if nothing speaks against it.
  std::optional<std::string> refusal() const { return files_.refusal(); }

 private:
  KeptFiles files_;
};

/// Where a run keeps cubins: `cubins` in its cache folder; nowhere if that is empty.
Cache cubins_in(const std::string& cache_folder);
/// For a record: who made it and when, and its registers.
std::string note_of(const Cubin& cubin);
/// Loads it onto the current device. Throws CudaError.
ReadyKernel ready(const Cubin& cubin);

/// Of its text and options, all embedded headers, and the architecture.
std::string digest_of(const Request& request, const Architecture& architecture);
/// Under what a request is kept: its digest, and behind a hyphen one of the compiler.
std::string key_of(const Request& request, const Architecture& architecture, const Compiler& compiler);

/// From the cache, else compiled and kept. Without a compiler (null) only what was kept is found, whichever compiler made it:
/// a folder that was filled elsewhere serves a machine without one. Throws CompileError, and UnsupportedError where that
/// finds nothing.
Cubin compile(const Request& request, const Architecture& architecture, const Compiler* compiler,
              const Cache& cache);

}  // namespace headroom::jit
