// The name of a prefix: a SHA-256 chain over its blocks. A name covers every token from the
// beginning, the salt, and everything else that the cache's content depends on (model, KV type).
//
// Every part is tagged and carries its length, so different keys are different bytes. Names are the
// same in every process (no random seed), so nodes can compare them.
//
// One thread; the OpenSSL context is kept and reused.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/ids.h"

struct evp_md_ctx_st;
struct evp_md_st;

namespace millrace::kv {

struct Digest {
  std::array<uint8_t, 32> bytes{};
  friend bool operator==(const Digest&, const Digest&) = default;
  uint64_t prefix() const;  // the first 8 bytes
};

class BlockHasher {
 public:
  BlockHasher();
  ~BlockHasher();
  BlockHasher(const BlockHasher&) = delete;
  BlockHasher& operator=(const BlockHasher&) = delete;

  // The parent of block 0. It depends on the cache's identity, its reset epoch and the salt.
  Digest Root(std::string_view identity, uint64_t epoch, std::string_view salt);
  Digest Block(const Digest& parent, std::span<const TokenId> tokens);

 private:
  void Part(char tag, const void* data, size_t size);
  Digest Hash();  // of the parts so far; then starts over

  evp_md_st* md_ = nullptr;
  evp_md_ctx_st* context_ = nullptr;
  std::vector<uint8_t> parts_;
};

}  // namespace millrace::kv
