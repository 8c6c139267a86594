#include "net/certificate_hosts.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "net/authority.h"

namespace millrace::net {
namespace {

TEST(CertificateHosts, AreJudgedAsClientsDo) {
  const Duration day = Duration::Seconds(86400);
  const auto authority = CertificateAuthority::Create("millrace test", day);
  ASSERT_TRUE(authority.ok());
  const auto made = authority->Issue({"x", {"head", "*.workers.svc", "10.9.0.2", "fe80::1"}, day});
  ASSERT_TRUE(made.ok()) << made.status().message();
  const std::string path = testing::TempDir() + "certificate_hosts_test.crt";
  ASSERT_TRUE(WriteFileWithMode(path, made->certificate_pem, 0600, ExistingFile::kReplace).ok());
  for (const char* good : {"head", "w-0.workers.svc", "10.9.0.2", "fe80::1"}) {
    EXPECT_TRUE(CheckCertificateHost(path, good).ok()) << good;
  }
  for (const char* bad : {"workers.svc", "a.b.workers.svc", "10.9.0.3", "w-0.workers", ""}) {
    EXPECT_EQ(CheckCertificateHost(path, bad).code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(
      CheckCertificateHost(path, "tail").message(),
      "the certificate " + path + " is for head, *.workers.svc, 10.9.0.2, fe80::1, not for tail");
  std::filesystem::remove(path);
}

TEST(CertificateHosts, NeedACertificate) {
  EXPECT_FALSE(CheckCertificateHost("/nowhere/tls.crt", "head").ok());
}

}  // namespace
}  // namespace millrace::net
