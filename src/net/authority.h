// CertificateAuthority: makes the certificates with which the processes of a cluster know each
// other, so that nobody needs other tools for mutual TLS. Values in PEM; one thread at a time.
//
// Keys are P-256. What it issues serves both as a server's and as a client's certificate.
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
inline constexpr size_t kCertificateNameBytesMax = 64;  // X.520's bound of a common name

struct PemIdentity {
  std::string certificate_pem;
  std::string key_pem;
};

struct CertificateRequest {
  std::string name;                // for people, such as "millrace worker"
  std::vector<std::string> hosts;  // names and addresses by which it is called
  Duration lifetime;
};

class CertificateAuthority {
 public:
  static Result<CertificateAuthority> Create(const std::string& name, Duration lifetime);
  // kInvalidArgument when the texts are no authority, or the key is another's.
  static Result<CertificateAuthority> Load(const PemIdentity& identity);

  const PemIdentity& identity() const { return identity_; }
  // kInvalidArgument names the host that is neither a name nor an address.
  Result<PemIdentity> Issue(const CertificateRequest& request) const;

 private:
  CertificateAuthority() = default;

  PemIdentity identity_;
  std::shared_ptr<x509_st> certificate_;
  std::shared_ptr<evp_pkey_st> key_;
};

// A host as it may stand in a certificate: an IPv4 or IPv6 address, or a DNS name of letters,
// digits, '-', '_' and '.', its first label perhaps "*".
bool IsCertificateHost(const std::string& host);

}  // namespace millrace::net
