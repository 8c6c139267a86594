// CertificateAuthority: issues the certificates with which the processes of a cluster authenticate
// each other, so that mutual TLS needs no other tools. Keys and certificates are PEM texts. One
// thread at a time.
//
// Keys are P-256. An issued certificate is valid for a server and for a client.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

struct x509_st;      // OpenSSL's X509
struct evp_pkey_st;  // OpenSSL's EVP_PKEY

namespace millrace::net {

inline constexpr size_t kCertificateHostsMax = 256;
inline constexpr size_t kCertificateNameBytesMax = 64;  // X.520's limit for a common name

struct PemIdentity {
  std::string certificate_pem;
  std::string key_pem;
};

struct CertificateRequest {
  std::string name;                // for display, such as "millrace worker"
  std::vector<std::string> hosts;  // names and addresses that clients connect to
  Duration lifetime;
};

class CertificateAuthority {
 public:
  static Result<CertificateAuthority> Create(const std::string& name, Duration lifetime);
  // kInvalidArgument when the texts are not the certificate and key of an authority, or the key
  // does not belong to the certificate.
  static Result<CertificateAuthority> Load(const PemIdentity& identity);

  const PemIdentity& identity() const { return identity_; }
  // kInvalidArgument names the host that is no address and no such name.
  Result<PemIdentity> Issue(const CertificateRequest& request) const;

 private:
  CertificateAuthority() = default;

  PemIdentity identity_;
  std::shared_ptr<x509_st> certificate_;
  std::shared_ptr<evp_pkey_st> key_;
};

// Whether a certificate may name `host`: an IPv4 or IPv6 address, or a DNS name of letters, digits,
// '-', '_' and '.'. Its first label may be "*" if at least two others follow: clients accept no
// wildcard before a single label.
bool IsCertificateHost(const std::string& host);

}  // namespace millrace::net
