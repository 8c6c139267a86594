// Which hosts a certificate is for, as clients judge it: a wildcard stands for one label, and needs
// two more behind it. Plain functions; any thread.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace::net {

// Whether clients that call `host` accept the first certificate of the PEM file. kInvalidArgument:
// they do not; the message names the hosts that it is for.
Status CheckCertificateHost(const std::string& path, const std::string& host);

}  // namespace millrace::net
