// Sha256: the digest of the added bytes; can be taken once. One thread.
#pragma once

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "base/check.h"

namespace millrace::model {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    MR_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void Add(const void* data, size_t size) {
    MR_CHECK(EVP_DigestUpdate(context_.get(), data, size) == 1);
  }
  void Add(const std::string& text) { Add(text.data(), text.size() + 1); }
  using Digest = std::array<std::byte, 32>;
  Digest Bytes() {
    Digest digest;
    MR_CHECK(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()),
                                nullptr) == 1);
    return digest;
  }
  std::string Hex() {
    std::string text;
    for (std::byte byte : Bytes()) text += fmt::format("{:02x}", std::to_integer<int>(byte));
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace millrace::model
