// TLS contexts from certificate files. The pointer hides OpenSSL's types. Any thread may use a
// context.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace millrace::net {

using TlsContext = std::shared_ptr<ssl_ctx_st>;

// A server context: TLS 1.3, or 1.2 with forward secrecy, with the PEM certificate chain and
// private key from these files. An error names the file and what is wrong with it.
Result<TlsContext> LoadServerTls(const std::string& certificate_path, const std::string& key_path);

// A client context. Verifies servers against the system's authorities, or those of `ca_path` if it
// is not empty; with `verify_peer` false it accepts every server.
Result<TlsContext> MakeClientTls(const std::string& ca_path, bool verify_peer);

// Contexts for processes that connect to each other. Both sides present the certificate of
// `certificate_path` and require from the other a certificate that the authority of `ca_path`
// issued. TLS 1.3. Host names are not compared: the authority is the cluster's own, and every
// holder of one of its certificates belongs to the cluster.
struct PeerTls {
  TlsContext server, client;
};
Result<PeerTls> LoadPeerTls(const std::string& certificate_path, const std::string& key_path,
                            const std::string& ca_path);

}  // namespace millrace::net
