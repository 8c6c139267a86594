#include "base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <iterator>

#include "base/check.h"

namespace millrace {

Sha256::Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  // Looked up once per process. Never freed, because objects of any lifetime use it.
  static EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  MR_CHECK(algorithm != nullptr && context_ != nullptr) << "libcrypto has no SHA-256";
  MR_CHECK(EVP_DigestInit_ex2(context_.get(), algorithm, nullptr) == 1);
}

void Sha256::Add(const void* data, size_t size) {
  MR_CHECK(EVP_DigestUpdate(context_.get(), data, size) == 1);
}

Sha256::Digest Sha256::Take() {
  Digest digest;
  MR_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
  // Without an algorithm, OpenSSL starts over with the same one and allocates nothing.
  MR_CHECK(EVP_DigestInit_ex2(context_.get(), nullptr, nullptr) == 1);
  return digest;
}

Sha256::Digest Sha256Of(std::string_view bytes) {
  Sha256 sha256;
  sha256.Add(bytes.data(), bytes.size());
  return sha256.Take();
}

std::string Hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

}  // namespace millrace
