#include "serve/http/auth.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <strings.h>

#include <algorithm>

#include "base/file.h"

namespace millrace::serve {
namespace {

constexpr std::string_view kScheme = "Bearer ";
constexpr size_t kFingerprintBytes = 16;

bool Visible(char c) { return c > 0x20 && c < 0x7f; }

}  // namespace

Result<ApiKeys> ApiKeys::Create(const std::vector<std::string>& keys) {
  if (keys.size() > kApiKeysMax) {
    return InvalidArgument(
        fmt::format("{} API keys are too many, the limit is {}", keys.size(), kApiKeysMax));
  }
  ApiKeys result;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].empty() || !std::all_of(keys[i].begin(), keys[i].end(), Visible)) {
      return InvalidArgument(
          fmt::format("API key {} of {} is empty or has a character that is not visible ASCII "
                      "(such as a space)",
                      i + 1, keys.size()));
    }
    result.digests_.push_back(Hash(keys[i]));
  }
  return result;
}

std::optional<size_t> ApiKeys::Match(std::optional<std::string_view> authorization) const {
  if (!authorization || authorization->size() < kScheme.size() ||
      strncasecmp(authorization->data(), kScheme.data(), kScheme.size()) != 0) {
    return std::nullopt;
  }
  return MatchKey(authorization->substr(kScheme.size()));
}

std::optional<size_t> ApiKeys::MatchRequest(const net::HttpRequest& request) const {
  if (const auto authorization = request.Header("authorization")) return Match(authorization);
  for (const char* name : {"x-api-key", "api-key"}) {
    if (const auto key = request.Header(name)) return MatchKey(*key);
  }
  return std::nullopt;
}

std::optional<size_t> ApiKeys::MatchKey(std::string_view key) const {
  const Digest given = Hash(key);
  std::optional<size_t> match;
  for (size_t i = 0; i < digests_.size(); ++i) {
    if (CRYPTO_memcmp(digests_[i].data(), given.data(), given.size()) == 0) match = i;
  }
  return match;
}

// A hash of the digest, so that the digest itself is never stored outside this object.
std::string ApiKeys::Fingerprint(size_t index) const {
  const Digest& digest = digests_.at(index);
  const Digest named = Hash(
      "millrace owner" + std::string(reinterpret_cast<const char*>(digest.data()), digest.size()));
  std::string text;
  for (size_t i = 0; i < kFingerprintBytes; ++i) text += fmt::format("{:02x}", named[i]);
  return text;
}

bool ApiKeys::Knows(std::string_view fingerprint) const {
  if (fingerprint.empty()) return !required();
  for (size_t i = 0; i < digests_.size(); ++i) {
    if (Fingerprint(i) == fingerprint) return true;
  }
  return false;
}

ApiKeys::Digest ApiKeys::Hash(std::string_view key) { return Sha256Of(key); }

Result<std::vector<std::string>> ReadApiKeyFile(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string content, ReadFile(path, kApiKeyFileBytesMax));
  std::vector<std::string> keys;
  size_t begin = 0;
  while (begin < content.size()) {
    size_t end = std::min(content.find('\n', begin), content.size());
    std::string line = content.substr(begin, end - begin);
    begin = end + 1;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line.front() != '#') keys.push_back(std::move(line));
  }
  if (keys.empty()) return InvalidArgument(path + " contains no API key");
  return keys;
}

}  // namespace millrace::serve
