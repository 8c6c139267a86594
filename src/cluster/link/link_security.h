// LinkSecurity: how processes of a cluster authenticate each other on the control plane, with
// certificates of one authority (mutual TLS), a join token, or both. Plain values; any thread.
//
// Plain text is meant for one machine. It needs a join token. Beyond the loopback interface the
// operator must also allow it explicitly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "base/status.h"

namespace millrace::cluster {

struct LinkSecurity {
  // PEM files; all three or none.
  std::string authority_path, certificate_path, key_path;
  std::string token;  // the content of the token file; empty: only certificates are checked
  bool plain_text_beyond_loopback = false;

  bool tls() const { return !certificate_path.empty(); }
};

// What a certificate of `millrace certs` allows its holder to be, by its common name. Certificates
// of other issuers say nothing, and allow both.
enum class LinkRole : uint8_t { kController, kWorker };
inline constexpr char kControllerCommonName[] = "millrace controller";
inline constexpr char kWorkerCommonName[] = "millrace worker";
// kFailedPrecondition: the certificate with this common name is not for that role.
Status CheckCertifiedRole(std::string_view common_name, LinkRole role);

// The content of a token file without the white space around it: 16 to wire::kTokenBytesMax
// printable characters.
Result<std::string> ReadTokenFile(const std::string& path);

// Whether `security` is enough to serve or call `address` ("host:port"). The error says what is
// missing.
Status CheckLinkSecurity(const LinkSecurity& security, std::string_view address);

// 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(std::string_view address);

// A token stored and compared as a digest, so that the time of a check reveals nothing about it.
class JoinToken {
 public:
  explicit JoinToken(std::string_view token);
  // Always true if the token is empty.
  bool Matches(std::string_view given) const;

 private:
  bool required_;
  Sha256::Digest digest_;
};

}  // namespace millrace::cluster
