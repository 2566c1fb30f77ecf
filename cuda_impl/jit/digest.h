// SHA-256 of a list of texts.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace headroom::jit {

class Digest {
 public:
  Digest();
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  /// The length goes before the text, so that no two different lists have the same bytes.
  void add(std::string_view text);
  /// 64 digits, of what was added. Nothing may be added any more.
  std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// Of `text` alone, without its length.
std::string sha256(std::string_view text);

}  // namespace headroom::jit
