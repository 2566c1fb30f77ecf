// One of the two compilers, for tests that ask each.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "core/error.h"
#include "jit/compiler.h"

namespace headroom::jit {

/// `variable` is left out for the time of a test.
class WithoutVariable {
 public:
  explicit WithoutVariable(const char* variable, const char* instead = "") : variable_(variable) {
    if (const char* value = std::getenv(variable)) value_ = value;
    setenv(variable, instead, 1);
  }
  ~WithoutVariable() {
    if (value_)
      setenv(variable_, value_->c_str(), 1);
    else
      unsetenv(variable_);
  }

 private:
  const char* variable_;
  std::optional<std::string> value_;
};

/// Null, with the reason, where this machine has none.
inline std::unique_ptr<Compiler> only(const std::string& name, std::string& reason) {
  const WithoutVariable other(name == "nvcc" ? "HEADROOM_NVRTC" : "HEADROOM_NVCC");
  try {
    return find_compiler();
  } catch (const UnsupportedError& error) {
    reason = error.what();
    return nullptr;
  }
}

}  // namespace headroom::jit
