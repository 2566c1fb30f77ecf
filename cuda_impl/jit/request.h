// What is compiled for the network at hand, and what comes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace headroom::jit {

/// The GPU that code is made for, by its compute capability.
struct Architecture {
  int major = 9, minor = 0;
  /// "sm_90a": from 9.0 on with the instructions that are of this generation alone, such as wgmma. "sm_86": there are none before.
  std::string name() const {
    return "sm_" + std::to_string(major) + std::to_string(minor) + (major >= 9 ? "a" : "");
  }
};

/// One kernel. Two requests with the same content are compiled to the same machine code.
struct Request {
  std::string name;                  ///< for people, in errors and in a record: "cuda-fused pipeline of bf16"
  std::vector<std::string> headers;  ///< as device code includes them: "fused/pipeline.cuh"; see sources.h
  std::string text;                  ///< device code behind the headers; may be empty
  std::string kernel;                ///< "headroom::fused::pipeline_kernel<headroom::fused::Bf16, 3>"
  /// Macros, name and value, that are defined before the first header.
  std::vector<std::pair<std::string, std::string>> constants;
  std::vector<std::string> options;  ///< of the compiler, beside those that every kernel has
  /// Bytes of a thread that may lie in local memory. A few that are stored once a step cost nothing.
  int most_local_bytes = 0;
  /// The kernel's argument and its size here. A kernel that sees another size is not compiled.
  std::string argument_type;
  std::size_t argument_bytes = 0;
};

/// A kernel as machine code.
struct Cubin {
  std::vector<char> bytes;
  std::string kernel;     ///< its name in there
  int registers = 0;      ///< of a thread
  int shared_bytes = 0;   ///< of a thread block, beside those that a launch asks for
  std::string compiler;   ///< that made it: "nvcc 13.0.88"
  std::string log;        ///< of the compiler
  bool was_kept = false;  ///< found in the cache
  double seconds = 0;     ///< that it took to compile or to find it
};

/// A kernel that cannot be compiled, or must not be used: it spills more registers than its request allows, or its products are
/// serialised. The
/// message names the kernel and shows the first lines that say why, on one line.
class CompileError : public std::runtime_error {
 public:
  CompileError(const std::string& message, std::string log)
      : std::runtime_error(message), log_(std::move(log)) {}
  const std::string& log() const { return log_; }

 private:
  std::string log_;
};

/// `value` as 32-bit words with commas between them, for a macro that device code makes the value of again by
/// __builtin_bit_cast. Values with padding are refused when this is compiled: two equal ones might differ in their words.
template <class Value>
std::string as_words(const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value> && std::has_unique_object_representations_v<Value>);
  static_assert(sizeof(Value) % sizeof(std::uint32_t) == 0);
  std::uint32_t words[sizeof(Value) / sizeof(std::uint32_t)];
  std::memcpy(words, &value, sizeof value);
  std::string text;
  for (const std::uint32_t word : words) text += (text.empty() ? "" : ", ") + std::to_string(word) + "u";
  return text;
}

}  // namespace headroom::jit
