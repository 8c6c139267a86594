// For tests: a new self-signed certificate.
#pragma once

#include <string>

namespace millrace::net {

struct TestCertificate {
  std::string certificate_pem;
  std::string key_pem;
};

// For 127.0.0.1 and localhost, valid for an hour.
TestCertificate MakeTestCertificate();

}  // namespace millrace::net
