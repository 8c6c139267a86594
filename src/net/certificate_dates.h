// The dates of the certificates that this process uses: the log says when one has expired or soon
// will, and /metrics has the time. Process-wide, as the log is. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace millrace::net {

inline constexpr Duration kCertificateWarning = Duration::Seconds(30 * 86400.0);

// Unix times. Of several certificates in a file: of a chain, the period in which all are valid; of
// authorities, of which one is enough, the one that lasts longest.
struct CertificateDates {
  int64_t not_before_s = 0;
  int64_t not_after_s = 0;
  friend bool operator==(const CertificateDates&, const CertificateDates&) = default;
};
enum class CertificateFile { kChain, kAuthorities };
// kInvalidArgument: there is no certificate in the file.
Result<CertificateDates> ReadCertificateDates(const std::string& path, CertificateFile kind);

// What is wrong with such dates at a time; empty: nothing. An error keeps others from connecting.
struct DateProblem {
  bool error = false;
  std::string text;
};
DateProblem FindDateProblem(const CertificateDates& dates, int64_t now_s);

struct UsedCertificate {
  std::string use;  // "https", "cluster", "cluster_authority"
  std::string path;
  CertificateDates dates;
  friend bool operator==(const UsedCertificate&, const UsedCertificate&) = default;
};
// To be called when the certificate was loaded. Logs what is wrong with its dates and `cure`, once
// for each state of the file. A file that cannot be read is left to its loader.
void NoteCertificate(const std::string& use, const std::string& path, CertificateFile kind,
                     const std::string& cure);
// The ones noted last, one for each use.
std::vector<UsedCertificate> NotedCertificates();

}  // namespace millrace::net
