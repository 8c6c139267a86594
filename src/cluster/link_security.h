// How processes of a cluster know each other on the control plane: certificates of one authority
// (mutual TLS), a join token, or both. Values; any thread.
//
// Plain text is for one machine: it needs a join token, and beyond the loopback interface it needs
// a word of the operator as well.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::cluster {

struct LinkSecurity {
  // PEM files; all three or none.
  std::string authority_path, certificate_path, key_path;
  std::string token;  // the content of the token file; empty: certificates alone decide
  bool plain_text_beyond_loopback = false;

  bool tls() const { return !certificate_path.empty(); }
};

// The content of a token file without the white space around it: 16 to wire::kTokenBytesMax
// printing characters.
Result<std::string> ReadTokenFile(const std::string& path);

// Whether `address` ("host:port") may be served or called so; the error says what is missing.
Status CheckLinkSecurity(const LinkSecurity& security, std::string_view address);

// 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(std::string_view address);

// A token kept and compared as a digest, so that the time a check takes tells nothing of it.
class JoinToken {
 public:
  explicit JoinToken(std::string_view token);
  // Always, when there is no token.
  bool Matches(std::string_view given) const;

 private:
  bool required_;
  std::array<uint8_t, 32> digest_;
};

}  // namespace millrace::cluster
