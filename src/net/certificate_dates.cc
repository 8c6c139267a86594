#include "net/certificate_dates.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/mutex.h"

namespace millrace::net {
namespace {

constexpr size_t kPemFileBytesMax = 1 << 20;
constexpr int64_t kDay_s = 86400;

std::optional<int64_t> UnixTimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (time == nullptr || ASN1_TIME_to_tm(time, &parts) != 1) return std::nullopt;
  return timegm(&parts);
}

std::string DateText(int64_t unix_s) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(unix_s)));
}

int64_t UnixNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

struct Noted {
  Mutex mutex;
  std::map<std::string, UsedCertificate> by_use MR_GUARDED_BY(mutex);
};

Noted& NotedOfProcess() {
  static Noted noted;
  return noted;
}

}  // namespace

Result<CertificateDates> ReadCertificateDates(const std::string& path, CertificateFile kind) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kPemFileBytesMax));
  const std::unique_ptr<BIO, decltype(&BIO_free)> in(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
  std::optional<CertificateDates> all;
  while (in) {
    const std::unique_ptr<X509, decltype(&X509_free)> one(
        PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr), X509_free);
    if (!one) break;
    const auto begin = UnixTimeOf(X509_get0_notBefore(one.get()));
    const auto end = UnixTimeOf(X509_get0_notAfter(one.get()));
    if (!begin || !end) continue;
    if (!all) {
      all = CertificateDates{*begin, *end};
    } else if (kind == CertificateFile::kChain) {
      all = CertificateDates{std::max(all->not_before_s, *begin), std::min(all->not_after_s, *end)};
    } else if (*end > all->not_after_s) {
      all = CertificateDates{*begin, *end};
    }
  }
  ERR_clear_error();  // the end of the file is one
  if (!all) return InvalidArgument(path + " has no certificate");
  return *all;
}

DateProblem FindDateProblem(const CertificateDates& dates, int64_t now_s) {
  const int64_t left_s = dates.not_after_s - now_s;
  if (left_s <= 0) {
    return {true, fmt::format("expired on {}, {} days ago: nobody accepts it",
                              DateText(dates.not_after_s), -left_s / kDay_s)};
  }
  if (dates.not_before_s > now_s) {
    return {true, fmt::format("is not valid before {}: nobody accepts it; check the clock",
                              DateText(dates.not_before_s))};
  }
  if (left_s < static_cast<int64_t>(kCertificateWarning.seconds())) {
    return {false,
            fmt::format("expires on {}, in {} days", DateText(dates.not_after_s), left_s / kDay_s)};
  }
  return {};
}

void NoteCertificate(const std::string& use, const std::string& path, CertificateFile kind,
                     const std::string& cure) {
  const Result<CertificateDates> dates = ReadCertificateDates(path, kind);
  if (!dates.ok()) return;
  {
    Noted& noted = NotedOfProcess();
    const MutexLock lock(noted.mutex);
    const UsedCertificate now{use, path, *dates};
    const auto [at, is_new] = noted.by_use.try_emplace(use, now);
    if (!is_new && at->second == now) return;
    at->second = now;
  }
  const DateProblem problem = FindDateProblem(*dates, UnixNow());
  if (problem.text.empty()) return;
  const std::string line = fmt::format("the certificate {} {}; {}", path, problem.text, cure);
  if (problem.error) {
    MR_LOG(error, "{}", line);
  } else {
    MR_LOG(warn, "{}", line);
  }
}

std::vector<UsedCertificate> NotedCertificates() {
  std::vector<UsedCertificate> used;
  Noted& noted = NotedOfProcess();
  const MutexLock lock(noted.mutex);
  for (const auto& [use, one] : noted.by_use) used.push_back(one);
  return used;
}

}  // namespace millrace::net
