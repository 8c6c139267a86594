#include "net/authority.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <memory>

namespace millrace::net {
namespace {

constexpr Duration kDay = Duration::Seconds(86400);

std::shared_ptr<X509> Read(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  return {PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free};
}

std::shared_ptr<EVP_PKEY> ReadKey(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
      BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  return {PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr), EVP_PKEY_free};
}

// Whether TLS libraries accept `certificate` for `purpose` under `authority`.
bool Verifies(const std::string& certificate, const std::string& authority, int purpose) {
  const auto leaf = Read(certificate);
  const auto root = Read(authority);
  const std::unique_ptr<X509_STORE, decltype(&X509_STORE_free)> store(X509_STORE_new(),
                                                                      X509_STORE_free);
  X509_STORE_add_cert(store.get(), root.get());
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> context(
      X509_STORE_CTX_new(), X509_STORE_CTX_free);
  X509_STORE_CTX_init(context.get(), store.get(), leaf.get(), nullptr);
  X509_STORE_CTX_set_purpose(context.get(), purpose);
  X509_VERIFY_PARAM_set_flags(X509_STORE_CTX_get0_param(context.get()), X509_V_FLAG_X509_STRICT);
  return X509_verify_cert(context.get()) == 1;
}

PemIdentity Issue(const CertificateAuthority& authority, std::vector<std::string> hosts) {
  auto made = authority.Issue({"millrace worker", std::move(hosts), kDay});
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made.ok() ? *made : PemIdentity{};
}

TEST(Authority, IssuedCertificatesAreValidForServersAndClientsOfTheirHosts) {
  const auto authority = CertificateAuthority::Create("millrace test", kDay);
  ASSERT_TRUE(authority.ok()) << authority.status().ToString();
  const PemIdentity leaf = Issue(*authority, {"localhost", "*.workers.example", "10.9.0.2", "::1"});
  const std::string& root = authority->identity().certificate_pem;
  EXPECT_TRUE(Verifies(leaf.certificate_pem, root, X509_PURPOSE_SSL_SERVER));
  EXPECT_TRUE(Verifies(leaf.certificate_pem, root, X509_PURPOSE_SSL_CLIENT));
  const auto x = Read(leaf.certificate_pem);
  for (const char* host : {"localhost", "w-1.workers.example"}) {
    EXPECT_EQ(X509_check_host(x.get(), host, 0, 0, nullptr), 1) << host;
  }
  EXPECT_EQ(X509_check_ip_asc(x.get(), "10.9.0.2", 0), 1);
  EXPECT_EQ(X509_check_ip_asc(x.get(), "::1", 0), 1);
  EXPECT_EQ(X509_check_ip_asc(x.get(), "10.9.0.3", 0), 0);
  EXPECT_EQ(X509_check_host(x.get(), "other.example", 0, 0, nullptr), 0);
  EXPECT_EQ(X509_check_private_key(x.get(), ReadKey(leaf.key_pem).get()), 1);
}

TEST(Authority, CertificatesOfAnotherAuthorityAreInvalid) {
  const auto one = CertificateAuthority::Create("millrace test", kDay);
  const auto two = CertificateAuthority::Create("millrace test", kDay);
  const PemIdentity leaf = Issue(*one, {"localhost"});
  EXPECT_FALSE(
      Verifies(leaf.certificate_pem, two->identity().certificate_pem, X509_PURPOSE_SSL_SERVER));
  EXPECT_FALSE(Verifies(leaf.certificate_pem, leaf.certificate_pem, X509_PURPOSE_SSL_SERVER))
      << "a leaf is not an authority";
}

TEST(Authority, ALoadedAuthorityIssuesUnderTheSameRoot) {
  const auto first = CertificateAuthority::Create("millrace test", kDay);
  const auto again = CertificateAuthority::Load(first->identity());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  const PemIdentity leaf = Issue(*again, {"later.example"});
  EXPECT_TRUE(
      Verifies(leaf.certificate_pem, first->identity().certificate_pem, X509_PURPOSE_SSL_CLIENT));
}

TEST(Authority, LoadRefusesWhatIsNotAnAuthority) {
  const auto one = CertificateAuthority::Create("millrace test", kDay);
  const auto two = CertificateAuthority::Create("millrace test", kDay);
  const auto message = [](const PemIdentity& identity) {
    const auto loaded = CertificateAuthority::Load(identity);
    return loaded.ok() ? "no error" : loaded.status().message();
  };
  const std::string root = one->identity().certificate_pem, key = one->identity().key_pem;
  EXPECT_EQ(message({"", key}), "contains no PEM certificate");
  EXPECT_EQ(message({root.substr(0, root.size() / 2), key}), "contains no PEM certificate");
  EXPECT_EQ(message({root, ""}), "contains no PEM private key");
  EXPECT_EQ(message({root, two->identity().key_pem}), "the key does not belong to the certificate");
  EXPECT_EQ(message(Issue(*one, {"localhost"})), "is not the certificate of an authority");
}

TEST(Authority, HostsAreNamesOrAddresses) {
  for (const char* good : {"a", "a-b.c_d.example", "*.x.svc", "127.0.0.1", "fe80::1"}) {
    EXPECT_TRUE(IsCertificateHost(good)) << good;
  }
  for (const char* bad : {"", "*", "*.svc", "a b", "a,DNS:b", "a..b", ".a", "a.", "a/b", "a:80",
                          "*.*.a", "http://a", "b\xc3\xbc", "a\n"}) {
    EXPECT_FALSE(IsCertificateHost(bad)) << bad;
  }
  const auto authority = CertificateAuthority::Create("millrace test", kDay);
  const auto refused = authority->Issue({"x", {"good", "a,IP:1.2.3.4"}, kDay});
  EXPECT_EQ(refused.status().message(),
            "'a,IP:1.2.3.4' is no address and no host name that clients accept");
  EXPECT_EQ(authority->Issue({"x", {}, kDay}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(authority->Issue({std::string(65, 'x'), {"a"}, kDay}).status().code(),
            StatusCode::kInvalidArgument);
  const std::vector<std::string> many(kCertificateHostsMax + 1, "a");
  EXPECT_EQ(authority->Issue({"x", many, kDay}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::net
