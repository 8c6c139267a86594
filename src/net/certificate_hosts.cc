#include "net/certificate_hosts.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <vector>

#include "base/file.h"
#include "base/log.h"

namespace millrace::net {
namespace {

constexpr size_t kCertificateBytesMax = 1 << 20;
constexpr size_t kHostsShownMax = 8;

std::string AddressText(const ASN1_OCTET_STRING& bytes) {
  char text[INET6_ADDRSTRLEN] = {};
  const int family = ASN1_STRING_length(&bytes) == 4 ? AF_INET : AF_INET6;
  const bool whole = ASN1_STRING_length(&bytes) == 4 || ASN1_STRING_length(&bytes) == 16;
  if (!whole || !inet_ntop(family, ASN1_STRING_get0_data(&bytes), text, sizeof text)) return "?";
  return text;
}

std::vector<std::string> HostsOf(const X509& x) {
  std::vector<std::string> hosts;
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&x, NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) {
      const auto* bytes = ASN1_STRING_get0_data(name->d.dNSName);
      hosts.emplace_back(bytes, bytes + ASN1_STRING_length(name->d.dNSName));
    } else if (name->type == GEN_IPADD) {
      hosts.push_back(AddressText(*name->d.iPAddress));
    }
  }
  if (hosts.size() > kHostsShownMax) {
    hosts.resize(kHostsShownMax);
    hosts.emplace_back("...");
  }
  return hosts;
}

}  // namespace

Status CheckCertificateHost(const std::string& path, const std::string& host) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kCertificateBytesMax));
  const std::unique_ptr<BIO, decltype(&BIO_free)> in(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> x(
      PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr), X509_free);
  if (!x) {
    ERR_clear_error();
    return InvalidArgument(path + " has no certificate");
  }
  if (X509_check_ip_asc(x.get(), host.c_str(), 0) == 1 ||
      X509_check_host(x.get(), host.data(), host.size(), 0, nullptr) == 1) {
    return OkStatus();
  }
  return InvalidArgument(fmt::format(
      "the certificate {} is for {}, not for {}", path,
      Printable(fmt::format("{}", fmt::join(HostsOf(*x), ", ")), 400), Printable(host)));
}

}  // namespace millrace::net
