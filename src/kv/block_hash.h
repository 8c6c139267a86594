// The name of a prefix: a SHA-256 chain over its blocks. A name covers every token from the
// beginning, the salt, and everything else that the cache's content depends on (model, KV type).
//
// Every part is tagged and carries its length, so different keys are different bytes. Names are the
// same in every process (no random seed), so nodes can compare them.
//
// One thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "core/ids.h"

namespace millrace::kv {

struct Digest {
  Sha256::Digest bytes{};
  friend bool operator==(const Digest&, const Digest&) = default;
  uint64_t prefix() const;  // the first 8 bytes
};

class BlockHasher {
 public:
  // The parent of block 0. It depends on the cache's identity, its reset epoch and the salt.
  Digest Root(std::string_view identity, uint64_t epoch, std::string_view salt);
  Digest Block(const Digest& parent, std::span<const TokenId> tokens);

 private:
  struct Part {
    char tag;
    const void* data;
    uint64_t size;
  };
  Digest Hash(std::initializer_list<Part> parts);

  Sha256 sha256_;
  std::vector<uint8_t> joined_;  // kept for its memory
};

}  // namespace millrace::kv
