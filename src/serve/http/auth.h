// ApiKeys: the keys that admit callers to the server. Immutable after creation; any thread. A
// server whose keys change gets another object (Service::SetApiKeys).
//
// Keys are stored and compared as SHA-256 digests. Each check compares all of them, so its duration
// does not reveal how close a guess was.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "net/http/http.h"

namespace millrace::serve {

inline constexpr size_t kApiKeysMax = 1024;
inline constexpr size_t kApiKeyFileBytesMax = 1 << 20;

class ApiKeys {
 public:
  ApiKeys() = default;  // no keys: every caller is admitted
  // kInvalidArgument for too many keys, an empty key, or one with a character that is not visible
  // ASCII. The error never shows the key.
  static Result<ApiKeys> Create(const std::vector<std::string>& keys);

  bool required() const { return !digests_.empty(); }
  size_t size() const { return digests_.size(); }
  // The index of the key in the value of an Authorization header ("Bearer KEY"); nullopt if it is
  // none of the keys.
  std::optional<size_t> Match(std::optional<std::string_view> authorization) const;
  // The index of the key in a request's headers: Authorization or, if that is absent, x-api-key (as
  // Anthropic's clients send it) or api-key (as Azure's do).
  std::optional<size_t> MatchRequest(const net::HttpRequest& request) const;
  // A name for key `index` that is the same in every run of the server and does not reveal the key.
  std::string Fingerprint(size_t index) const;
  // Whether one of the keys has that fingerprint; for "", whether no key is required.
  bool Knows(std::string_view fingerprint) const;

 private:
  using Digest = Sha256::Digest;
  std::optional<size_t> MatchKey(std::string_view key) const;
  static Digest Hash(std::string_view key);

  std::vector<Digest> digests_;
};

// One key per line; empty lines and lines that begin with '#' are skipped.
Result<std::vector<std::string>> ReadApiKeyFile(const std::string& path);

}  // namespace millrace::serve
