// The files in the folder that --tls-dir names: this process's certificate and key, and the
// authority whose certificates it accepts. `millrace certs` makes such folders; the names are those
// of a Kubernetes TLS secret.
#pragma once

namespace millrace::apps {

inline constexpr char kTlsAuthorityFile[] = "ca.crt";
inline constexpr char kTlsCertificateFile[] = "tls.crt";
inline constexpr char kTlsKeyFile[] = "tls.key";

}  // namespace millrace::apps
