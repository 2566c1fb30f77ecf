// The two compilers behind one interface: nvcc, as a program, and NVRTC, as a library.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "jit/request.h"

namespace headroom::jit {

class Compiler {
 public:
  virtual ~Compiler() = default;
  /// For people: "nvcc 13.0.88".
  virtual const std::string& name() const = 0;
  /// Everything about the compiler that its output depends on.
  virtual const std::string& identity() const = 0;
  /// Throws CompileError. May be called by several threads at once.
  virtual Cubin compile(const Request& request, const Architecture& architecture) const = 0;
};

/// `program` is an nvcc of 12.8 or newer, which needs g++ on PATH. Throws std::runtime_error if it does not run.
std::unique_ptr<Compiler> make_nvcc(const std::filesystem::path& program);

/// `library` is the absolute path of libnvrtc of 13.1 or newer: 13.0 makes other code than nvcc, with shared memory addresses
/// of 64 bits. Not for a process that holds PyTorch, which brings an NVRTC of its own. Throws std::runtime_error.
std::unique_ptr<Compiler> make_nvrtc(const std::filesystem::path& library);

/// The compiler of this machine: nvcc, whose machine code is what the kernels were measured with, else NVRTC.
///   nvcc    HEADROOM_NVCC, else CUDA_HOME/bin/nvcc, nvcc on PATH, /usr/local/cuda/bin/nvcc; and g++ on PATH
///   NVRTC   HEADROOM_NVRTC, else libnvrtc.so.13 beside this program
/// A variable that is set and empty leaves that compiler out. Throws UnsupportedError that says what is missing.
std::unique_ptr<Compiler> find_compiler();

/// The same, looked for once, as that takes a tenth of a second. Null: there is none, and what was kept has to do.
const Compiler* found_compiler();

/// The source text of a request, as both compilers get it. It defines HEADROOM_COMPILED_ALONE, where headers that host code shares
/// leave out what is the host's.
std::string program_text(const Request& request);

namespace internal {
/// What ptxas says of the one kernel in `log` (its option -v), put into `cubin`. Throws CompileError if the kernel keeps
/// anything in local memory, if its products are serialised, or if there is not exactly one.
void read_log(const Request& request, const std::string& log, Cubin& cubin);
/// The message of a failed compilation: the kernel's name and the first lines of the log that say what is wrong.
CompileError failed(const Request& request, const std::string& compiler, const std::string& log);
}  // namespace internal

}  // namespace headroom::jit
