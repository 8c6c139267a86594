#include "cluster/link_security.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>

#include "base/check.h"
#include "base/file.h"
#include "wire/limits.h"

namespace millrace::cluster {
namespace {

constexpr size_t kTokenBytesMin = 16;

std::array<uint8_t, 32> Digest(std::string_view text) {
  std::array<uint8_t, 32> digest = {};
  const int done =
      EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  MR_CHECK(done == 1) << "SHA-256 is not available";
  return digest;
}

}  // namespace

Result<std::string> ReadTokenFile(const std::string& path) {
  MR_ASSIGN_OR_RETURN(std::string token, ReadFile(path, wire::kTokenBytesMax + 2));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r' || token.back() == ' ')) {
    token.pop_back();
  }
  const auto printable = [](char c) { return c > 0x20 && c < 0x7f; };
  if (token.size() < kTokenBytesMin || !std::all_of(token.begin(), token.end(), printable)) {
    return InvalidArgument(
        fmt::format("{} does not hold a join token; a token has at least {} printable "
                    "characters without spaces",
                    path, kTokenBytesMin));
  }
  return token;
}

bool IsLoopback(std::string_view address) {
  std::string_view host = address.substr(0, address.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "localhost" || host == "::1") return true;
  return host.starts_with("127.") &&
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

Status CheckLinkSecurity(const LinkSecurity& security, std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == 0 || colon == std::string_view::npos || colon + 1 == address.size()) {
    return InvalidArgument(fmt::format("\"{}\" is not host:port", address));
  }
  const int files = !security.authority_path.empty() + !security.certificate_path.empty() +
                    !security.key_path.empty();
  if (files != 0 && files != 3) {
    return InvalidArgument("mutual TLS needs three files: an authority, a certificate and its key");
  }
  if (security.tls()) return OkStatus();
  if (security.token.empty()) {
    return InvalidArgument(
        "neither certificates nor a join token are given; give at least one of them");
  }
  if (!IsLoopback(address) && !security.plain_text_beyond_loopback) {
    return InvalidArgument(fmt::format(
        "{} is not a loopback address, so plain text is not allowed: give certificates (--tls-dir) "
        "or allow plain text (--insecure)",
        address));
  }
  return OkStatus();
}

JoinToken::JoinToken(std::string_view token) : required_(!token.empty()), digest_(Digest(token)) {}

bool JoinToken::Matches(std::string_view given) const {
  const auto digest = Digest(given);
  const bool same = CRYPTO_memcmp(digest.data(), digest_.data(), digest.size()) == 0;
  return same || !required_;
}

}  // namespace millrace::cluster
