#include "net/certificate_dates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>

#include "base/file.h"
#include "base/testing/temp_folder.h"
#include "net/authority.h"

namespace millrace::net {
namespace {

constexpr int64_t kDay_s = 86400;

std::string Certificate(double days) {
  const auto made = CertificateAuthority::Create("millrace test", Duration::Seconds(days * kDay_s));
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return made->identity().certificate_pem;
}

TEST(CertificateDates, AChainLastsAsLongAsItsShortestAndAuthoritiesAsTheirLongest) {
  const TempFolder folder;
  const std::string path = folder.path() + "/both.pem";
  ASSERT_TRUE(WriteFileAtomically(path, Certificate(5) + Certificate(50)).ok());
  const int64_t now = std::time(nullptr);
  const auto days = [&](CertificateFile kind) {
    const auto dates = ReadCertificateDates(path, kind);
    EXPECT_TRUE(dates.ok()) << dates.status().ToString();
    return (dates->not_after_s - now + kDay_s / 2) / kDay_s;
  };
  EXPECT_EQ(days(CertificateFile::kChain), 5);
  EXPECT_EQ(days(CertificateFile::kAuthorities), 50);
  EXPECT_FALSE(ReadCertificateDates(folder.path(), CertificateFile::kChain).ok());
}

TEST(CertificateDates, WhatIsWrongWithThem) {
  const CertificateDates dates{1'000'000, 1'000'000 + 100 * kDay_s};
  const auto at = [&](int64_t day) { return FindDateProblem(dates, 1'000'000 + day * kDay_s); };
  EXPECT_EQ(at(50).text, "");
  EXPECT_FALSE(at(80).error);
  EXPECT_EQ(at(80).text, "expires on 1970-04-22 13:46 UTC, in 20 days");
  EXPECT_TRUE(at(103).error);
  EXPECT_EQ(at(103).text, "expired on 1970-04-22 13:46 UTC, 3 days ago: nobody accepts it");
  EXPECT_TRUE(at(-1).error);
  EXPECT_NE(at(-1).text.find("not valid before"), std::string::npos);
}

TEST(CertificateDates, TheNewestStateOfEachUseIsKept) {
  const TempFolder folder;
  const std::string path = folder.path() + "/tls.crt";
  const auto noted = [&] {
    const auto all = NotedCertificates();
    const auto at = std::ranges::find(all, "test", &UsedCertificate::use);
    return at == all.end() ? 0 : at->dates.not_after_s;
  };
  NoteCertificate("test", path, CertificateFile::kChain, "cure");
  EXPECT_EQ(noted(), 0) << "there is none";
  ASSERT_TRUE(WriteFileAtomically(path, Certificate(5)).ok());
  NoteCertificate("test", path, CertificateFile::kChain, "cure");
  const int64_t first = noted();
  ASSERT_TRUE(WriteFileAtomically(path, Certificate(50)).ok());
  NoteCertificate("test", path, CertificateFile::kChain, "cure");
  EXPECT_NEAR(static_cast<double>(noted() - first), 45.0 * kDay_s, 60);
}

}  // namespace
}  // namespace millrace::net
