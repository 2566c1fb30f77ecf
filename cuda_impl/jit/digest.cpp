#include "jit/digest.h"

#include <openssl/evp.h>

#include <cstdint>
#include <span>
#include <stdexcept>

namespace headroom::jit {
namespace {

void check(bool done) {
  if (!done) throw std::runtime_error("libcrypto: SHA-256 failed");
}

std::string digits_of(std::span<const unsigned char> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

struct Digest::Context {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> evp{EVP_MD_CTX_new()};
};

Digest::Digest() : context_(std::make_unique<Context>()) {
  check(context_->evp != nullptr && EVP_DigestInit_ex(context_->evp.get(), EVP_sha256(), nullptr) == 1);
}
Digest::~Digest() = default;

void Digest::add(std::string_view text) {
  const std::uint64_t size = text.size();
  check(EVP_DigestUpdate(context_->evp.get(), &size, sizeof size) == 1);
  check(EVP_DigestUpdate(context_->evp.get(), text.data(), text.size()) == 1);
}

std::string Digest::hex() {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int count = 0;
  check(EVP_DigestFinal_ex(context_->evp.get(), bytes, &count) == 1);
  return digits_of({bytes, count});
}

std::string sha256(std::string_view text) {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int count = 0;
  check(EVP_Digest(text.data(), text.size(), bytes, &count, EVP_sha256(), nullptr) == 1);
  return digits_of({bytes, count});
}

}  // namespace headroom::jit
