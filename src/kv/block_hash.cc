#include "kv/block_hash.h"

#include <openssl/evp.h>

#include <bit>
#include <cstring>

#include "base/check.h"

namespace millrace::kv {

static_assert(std::endian::native == std::endian::little, "names are defined over little-endian");

uint64_t Digest::prefix() const {
  uint64_t value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

BlockHasher::BlockHasher()
    : md_(EVP_MD_fetch(nullptr, "SHA256", nullptr)), context_(EVP_MD_CTX_new()) {
  MR_CHECK(md_ && context_) << "libcrypto has no SHA-256";
  MR_CHECK(EVP_DigestInit_ex2(context_, md_, nullptr) == 1);
}

BlockHasher::~BlockHasher() {
  EVP_MD_CTX_free(context_);
  EVP_MD_free(md_);
}

Digest BlockHasher::Root(std::string_view identity, uint64_t epoch, std::string_view salt) {
  Part('I', identity.data(), identity.size());
  Part('E', &epoch, sizeof epoch);
  Part('S', salt.data(), salt.size());
  return Hash();
}

Digest BlockHasher::Block(const Digest& parent, std::span<const TokenId> tokens) {
  Part('P', parent.bytes.data(), parent.bytes.size());
  Part('T', tokens.data(), tokens.size_bytes());
  return Hash();
}

void BlockHasher::Part(char tag, const void* data, size_t size) {
  const uint64_t length = size;
  const auto append = [&](const void* bytes, size_t count) {
    const auto* begin = static_cast<const uint8_t*>(bytes);
    parts_.insert(parts_.end(), begin, begin + count);
  };
  append(&tag, 1);
  append(&length, sizeof length);
  append(data, size);
}

// Without a digest argument OpenSSL reuses the context, which allocates nothing.
Digest BlockHasher::Hash() {
  Digest digest;
  unsigned size = 0;
  MR_CHECK(EVP_DigestInit_ex2(context_, nullptr, nullptr) == 1);
  MR_CHECK(EVP_DigestUpdate(context_, parts_.data(), parts_.size()) == 1);
  MR_CHECK(EVP_DigestFinal_ex(context_, digest.bytes.data(), &size) == 1);
  MR_CHECK(size == digest.bytes.size());
  parts_.clear();
  return digest;
}

}  // namespace millrace::kv
