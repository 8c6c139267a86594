#include "kv/block_hash.h"

#include <bit>
#include <cstring>

namespace millrace::kv {

static_assert(std::endian::native == std::endian::little, "names are defined over little-endian");

uint64_t Digest::prefix() const {
  uint64_t value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

Digest BlockHasher::Root(std::string_view identity, uint64_t epoch, std::string_view salt) {
  return Hash({{'I', identity.data(), identity.size()},
               {'E', &epoch, sizeof epoch},
               {'S', salt.data(), salt.size()}});
}

Digest BlockHasher::Block(const Digest& parent, std::span<const TokenId> tokens) {
  return Hash(
      {{'P', parent.bytes.data(), parent.bytes.size()}, {'T', tokens.data(), tokens.size_bytes()}});
}

// Joins the parts first: each further call of OpenSSL takes 10 ns.
Digest BlockHasher::Hash(std::initializer_list<Part> parts) {
  size_t bytes = 0;
  for (const Part& part : parts) bytes += 1 + sizeof part.size + part.size;
  joined_.resize(bytes);
  uint8_t* to = joined_.data();
  for (const Part& part : parts) {
    *to++ = static_cast<uint8_t>(part.tag);
    std::memcpy(to, &part.size, sizeof part.size);
    to += sizeof part.size;
    if (part.size > 0) std::memcpy(to, part.data, part.size);
    to += part.size;
  }
  sha256_.Add(joined_.data(), joined_.size());
  return {sha256_.Take()};
}

}  // namespace millrace::kv
