#include "net/authority.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>

#include "base/log.h"

namespace millrace::net {
namespace {

constexpr int64_t kBackdatedSeconds = 300;  // for machines whose clocks are behind
constexpr int kSerialBytes = 16;
constexpr size_t kDnsNameBytesMax = 253;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::shared_ptr<X509>;
using Key = std::shared_ptr<EVP_PKEY>;

Status TlsFailure(const char* what) {
  const unsigned long code = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return Internal(fmt::format("{}: {}", what, reason == nullptr ? "unknown error" : reason));
}

bool IsAddress(const std::string& host) {
  uint8_t bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

template <typename Writer>
Result<std::string> ToPem(Writer write) {
  const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
  if (bio == nullptr || write(bio.get()) != 1) return TlsFailure("cannot write PEM");
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

Result<PemIdentity> ToPem(X509* certificate, EVP_PKEY* key) {
  PemIdentity pem;
  MR_ASSIGN_OR_RETURN(pem.certificate_pem,
                      ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); }));
  MR_ASSIGN_OR_RETURN(pem.key_pem, ToPem([&](BIO* bio) {
                        return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr,
                                                        nullptr);
                      }));
  return pem;
}

Status AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, decltype(&X509_EXTENSION_free)> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()), X509_EXTENSION_free);
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return TlsFailure("cannot create a certificate");
  }
  return OkStatus();
}

Status SetSerial(X509* certificate) {
  uint8_t bytes[kSerialBytes];
  if (RAND_bytes(bytes, kSerialBytes) != 1) return TlsFailure("cannot get random bytes");
  bytes[0] &= 0x7f;  // a positive number
  const std::unique_ptr<BIGNUM, decltype(&BN_free)> number(BN_bin2bn(bytes, kSerialBytes, nullptr),
                                                           BN_free);
  if (number == nullptr ||
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return TlsFailure("cannot create a certificate");
  }
  return OkStatus();
}

Status CheckName(const std::string& name) {
  if (!name.empty() && name.size() <= kCertificateNameBytesMax) return OkStatus();
  return InvalidArgument(fmt::format("a certificate's name must have 1 to {} bytes, got {}",
                                     kCertificateNameBytesMax, name.size()));
}

// Creates a certificate without extensions and signature.
Result<Certificate> NewCertificate(const std::string& name, Duration lifetime, EVP_PKEY* key) {
  MR_RETURN_IF_ERROR(CheckName(name));
  Certificate made(X509_new(), X509_free);
  if (made == nullptr) return TlsFailure("cannot create a certificate");
  X509* x = made.get();
  X509_set_version(x, X509_VERSION_3);
  MR_RETURN_IF_ERROR(SetSerial(x));
  X509_gmtime_adj(X509_getm_notBefore(x), -kBackdatedSeconds);
  X509_gmtime_adj(X509_getm_notAfter(x), static_cast<int64_t>(lifetime.seconds()));
  if (X509_set_pubkey(x, key) != 1 ||
      X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                 0) != 1) {
    return TlsFailure("cannot create a certificate");
  }
  return made;
}

std::string AlternativeNames(const std::vector<std::string>& hosts) {
  std::string names;
  for (const std::string& host : hosts) {
    names += fmt::format("{}{}:{}", names.empty() ? "" : ",", IsAddress(host) ? "IP" : "DNS", host);
  }
  return names;
}

template <typename T, typename Reader, typename Deleter>
std::shared_ptr<T> FromPem(const std::string& pem, Reader read, Deleter free) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  auto no_passphrase = [](char*, int, int, void*) { return 0; };
  T* made = bio == nullptr ? nullptr : read(bio.get(), nullptr, no_passphrase, nullptr);
  ERR_clear_error();
  return made == nullptr ? nullptr : std::shared_ptr<T>(made, free);
}

}  // namespace

bool IsCertificateHost(const std::string& host) {
  if (IsAddress(host)) return true;
  std::string name = host.starts_with("*.") ? host.substr(2) : host;
  if (name.empty() || name.size() > kDnsNameBytesMax || name.front() == '.' || name.back() == '.' ||
      name.find("..") != std::string::npos) {
    return false;
  }
  if (name.size() < host.size() && name.find('.') == std::string::npos) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c) != 0) || c == '-' || c == '_' || c == '.';
  });
}

Result<CertificateAuthority> CertificateAuthority::Create(const std::string& name,
                                                          Duration lifetime) {
  ERR_clear_error();
  CertificateAuthority made;
  made.key_ = Key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  if (made.key_ == nullptr) return TlsFailure("cannot create a key");
  MR_ASSIGN_OR_RETURN(made.certificate_, NewCertificate(name, lifetime, made.key_.get()));
  X509* x = made.certificate_.get();
  X509_set_issuer_name(x, X509_get_subject_name(x));
  MR_RETURN_IF_ERROR(AddExtension(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  MR_RETURN_IF_ERROR(AddExtension(x, x, NID_key_usage, "critical,keyCertSign,cRLSign"));
  MR_RETURN_IF_ERROR(AddExtension(x, x, NID_subject_key_identifier, "hash"));
  if (X509_sign(x, made.key_.get(), EVP_sha256()) <= 0) return TlsFailure("cannot sign");
  MR_ASSIGN_OR_RETURN(made.identity_, ToPem(x, made.key_.get()));
  return made;
}

Result<CertificateAuthority> CertificateAuthority::Load(const PemIdentity& identity) {
  CertificateAuthority made;
  made.identity_ = identity;
  made.certificate_ = FromPem<X509>(identity.certificate_pem, PEM_read_bio_X509, X509_free);
  if (made.certificate_ == nullptr) return InvalidArgument("contains no PEM certificate");
  made.key_ = FromPem<EVP_PKEY>(identity.key_pem, PEM_read_bio_PrivateKey, EVP_PKEY_free);
  if (made.key_ == nullptr) return InvalidArgument("contains no PEM private key");
  if (X509_check_ca(made.certificate_.get()) != 1) {
    return InvalidArgument("is not the certificate of an authority");
  }
  if (X509_check_private_key(made.certificate_.get(), made.key_.get()) != 1) {
    ERR_clear_error();
    return InvalidArgument("the key does not belong to the certificate");
  }
  return made;
}

Result<PemIdentity> CertificateAuthority::Issue(const CertificateRequest& request) const {
  ERR_clear_error();
  if (request.hosts.empty() || request.hosts.size() > kCertificateHostsMax) {
    return InvalidArgument(fmt::format("a certificate must name 1 to {} hosts, got {}",
                                       kCertificateHostsMax, request.hosts.size()));
  }
  for (const std::string& host : request.hosts) {
    if (!IsCertificateHost(host)) {
      return InvalidArgument(
          fmt::format("'{}' is no address and no host name that clients accept", Printable(host)));
    }
  }
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  if (key == nullptr) return TlsFailure("cannot create a key");
  MR_ASSIGN_OR_RETURN(const Certificate made,
                      NewCertificate(request.name, request.lifetime, key.get()));
  X509* x = made.get();
  X509_set_issuer_name(x, X509_get_subject_name(certificate_.get()));
  const std::pair<int, std::string> extensions[] = {
      {NID_basic_constraints, "critical,CA:FALSE"},
      {NID_key_usage, "critical,digitalSignature"},
      {NID_ext_key_usage, "serverAuth,clientAuth"},
      {NID_subject_key_identifier, "hash"},
      {NID_authority_key_identifier, "keyid"},
      {NID_subject_alt_name, AlternativeNames(request.hosts)}};
  for (const auto& [nid, value] : extensions) {
    MR_RETURN_IF_ERROR(AddExtension(x, certificate_.get(), nid, value));
  }
  if (X509_sign(x, key_.get(), EVP_sha256()) <= 0) return TlsFailure("cannot sign");
  return ToPem(x, key.get());
}

}  // namespace millrace::net
