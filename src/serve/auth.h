// API keys: who may use the server. Immutable after creation; any thread.
//
// Keys are kept and compared as SHA-256 digests, every key every time, so that the time a check
// takes tells nothing of how near a guess came.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "net/http.h"

namespace millrace::serve {

inline constexpr size_t kApiKeysMax = 1024;
inline constexpr size_t kApiKeyFileBytesMax = 1 << 20;

class ApiKeys {
 public:
  ApiKeys() = default;  // no key: everybody may enter
  // kInvalidArgument for an empty key or one with spaces or control characters; the key itself is
  // never shown.
  static Result<ApiKeys> Create(const std::vector<std::string>& keys);

  bool required() const { return !digests_.empty(); }
  size_t size() const { return digests_.size(); }
  // Which key the value of an Authorization header carries ("Bearer KEY"); nullopt: none of them.
  std::optional<size_t> Match(std::optional<std::string_view> authorization) const;
  // Which key a request carries: in Authorization, or without that header in x-api-key, as
  // Anthropic's clients send it, or in api-key, as Azure's do.
  std::optional<size_t> MatchRequest(const net::HttpRequest& request) const;
  // A name for key `index` that is the same in every life of the server and does not tell the key.
  std::string Fingerprint(size_t index) const;
  // Whether one of the keys has that fingerprint; "": whether everybody may enter.
  bool Knows(std::string_view fingerprint) const;

 private:
  using Digest = std::array<uint8_t, 32>;
  std::optional<size_t> MatchKey(std::string_view key) const;
  static Digest Hash(std::string_view key);

  std::vector<Digest> digests_;
};

// One key per line; empty lines and lines that begin with '#' are skipped.
Result<std::vector<std::string>> ReadApiKeyFile(const std::string& path);

}  // namespace millrace::serve
