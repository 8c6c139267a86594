// The folder that --tls-dir names: who this process is and whom it believes. `millrace certs` makes
// such folders; the names are those of a Kubernetes TLS secret.
#pragma once

namespace millrace::apps {

inline constexpr char kTlsAuthorityFile[] = "ca.crt";
inline constexpr char kTlsCertificateFile[] = "tls.crt";
inline constexpr char kTlsKeyFile[] = "tls.key";

}  // namespace millrace::apps
