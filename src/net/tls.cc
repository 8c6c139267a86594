#include "net/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/file.h"

namespace millrace::net {
namespace {

constexpr size_t kPemBytesMax = 1 << 20;

// OpenSSL's text for the first queued error; empties the queue.
std::string LastTlsError() {
  const unsigned long code = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown error" : reason;
}

// OpenSSL's file errors name neither the file nor the cause; these do.
Status CheckReadable(const char* what, const std::string& path) {
  auto content = ReadFile(path, kPemBytesMax);
  if (!content.ok()) return content.status().WithContext(fmt::format("TLS {} file", what));
  if (content->find("-----BEGIN ") == std::string::npos) {
    return InvalidArgument(fmt::format("TLS {} file {}: not in PEM format", what, path));
  }
  return OkStatus();
}

// Of TLS 1.2, for servers: those with forward secrecy that also authenticate what they encrypt. All
// of TLS 1.3 do.
constexpr char kCiphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20";

Result<TlsContext> NewContext(const SSL_METHOD* method) {
  TlsContext context(SSL_CTX_new(method), SSL_CTX_free);
  if (!context) return Internal("cannot create a TLS context: " + LastTlsError());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  return context;
}

Status UseCertificate(const TlsContext& context, const std::string& certificate_path,
                      const std::string& key_path) {
  MR_RETURN_IF_ERROR(CheckReadable("certificate", certificate_path));
  MR_RETURN_IF_ERROR(CheckReadable("key", key_path));
  ERR_clear_error();
  // A key with a passphrase must fail instead of asking on the terminal.
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_path.c_str()) != 1) {
    return InvalidArgument(
        fmt::format("TLS certificate file {}: {}", certificate_path, LastTlsError()));
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), key_path.c_str(), SSL_FILETYPE_PEM) != 1) {
    const std::string reason = LastTlsError();
    if (reason.find("mismatch") != std::string::npos) {
      return InvalidArgument(fmt::format("TLS key file {} does not belong to the certificate {}",
                                         key_path, certificate_path));
    }
    return InvalidArgument(
        fmt::format("TLS key file {}: {} (a passphrase is not supported)", key_path, reason));
  }
  if (SSL_CTX_check_private_key(context.get()) != 1) {
    return InvalidArgument(fmt::format("TLS key file {} does not belong to the certificate {}",
                                       key_path, certificate_path));
  }
  return OkStatus();
}

}  // namespace

Result<TlsContext> LoadServerTls(const std::string& certificate_path, const std::string& key_path) {
  MR_ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_server_method()));
  if (SSL_CTX_set_cipher_list(context.get(), kCiphers) != 1) {
    return Internal("cannot choose the ciphers of TLS: " + LastTlsError());
  }
  MR_RETURN_IF_ERROR(UseCertificate(context, certificate_path, key_path));
  return context;
}

Result<TlsContext> MakeClientTls(const std::string& ca_path, bool verify_peer) {
  MR_ASSIGN_OR_RETURN(TlsContext context, NewContext(TLS_client_method()));
  if (!verify_peer) {
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
    return context;
  }
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if (ca_path.empty()) {
    SSL_CTX_set_default_verify_paths(context.get());
    return context;
  }
  MR_RETURN_IF_ERROR(CheckReadable("authority", ca_path));
  ERR_clear_error();
  if (SSL_CTX_load_verify_locations(context.get(), ca_path.c_str(), nullptr) != 1) {
    return InvalidArgument(fmt::format("TLS authority file {}: {}", ca_path, LastTlsError()));
  }
  return context;
}

Result<PeerTls> LoadPeerTls(const std::string& certificate_path, const std::string& key_path,
                            const std::string& ca_path) {
  PeerTls tls;
  MR_ASSIGN_OR_RETURN(tls.server, LoadServerTls(certificate_path, key_path));
  MR_ASSIGN_OR_RETURN(tls.client, MakeClientTls(ca_path, /*verify_peer=*/true));
  MR_RETURN_IF_ERROR(UseCertificate(tls.client, certificate_path, key_path));
  if (SSL_CTX_load_verify_locations(tls.server.get(), ca_path.c_str(), nullptr) != 1) {
    return InvalidArgument(fmt::format("TLS authority file {}: {}", ca_path, LastTlsError()));
  }
  SSL_CTX_set_verify(tls.server.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  for (const TlsContext& context : {tls.server, tls.client}) {
    SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  }
  return tls;
}

}  // namespace millrace::net
