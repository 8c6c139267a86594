#include "cluster/link/link_security.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>

#include "base/file.h"
#include "base/host_port.h"
#include "wire/limits.h"

namespace millrace::cluster {
namespace {

constexpr size_t kTokenBytesMin = 16;

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

Status CheckCertifiedRole(std::string_view common_name, LinkRole role) {
  const bool controller = role == LinkRole::kController;
  if (common_name != (controller ? kWorkerCommonName : kControllerCommonName)) return OkStatus();
  return FailedPrecondition(fmt::format(
      "it shows the certificate of a {0}, and must be a {1}: `millrace certs` makes one for each; "
      "give the folder {1} to --tls-dir there",
      controller ? "worker" : "controller", controller ? "controller" : "worker"));
}

bool IsLoopback(std::string_view address) {
  const Result<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return false;
  const std::string& host = parsed->host;
  if (host == "localhost" || host == "::1") return true;
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos;
}

Status CheckLinkSecurity(const LinkSecurity& security, std::string_view address) {
  MR_RETURN_IF_ERROR(ParseHostPort(address).status().WithContext("address"));
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

JoinToken::JoinToken(std::string_view token)
    : required_(!token.empty()), digest_(Sha256Of(token)) {}

bool JoinToken::Matches(std::string_view given) const {
  const auto digest = Sha256Of(given);
  const bool same = CRYPTO_memcmp(digest.data(), digest_.data(), digest.size()) == 0;
  return same || !required_;
}

}  // namespace millrace::cluster
