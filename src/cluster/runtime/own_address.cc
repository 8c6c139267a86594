#include "cluster/runtime/own_address.h"

#include <fmt/format.h>

#include "base/host_port.h"
#include "net/certificate_hosts.h"

namespace millrace::cluster {

Status CheckOwnHost(const std::string& host, const LinkSecurity& security) {
  if (IsEveryAddress(host)) {
    return InvalidArgument(fmt::format(
        "others cannot reach this worker at {}, which stands for every address of a machine: give "
        "--advertise the name or address that they are to use",
        host));
  }
  if (!security.tls()) return OkStatus();
  const Status covered = net::CheckCertificateHost(security.certificate_path, host);
  if (covered.ok()) return covered;
  return InvalidArgument(fmt::format(
      "{}: every process that calls this worker would refuse it; make a certificate for this name "
      "(`millrace certs --host`), or give --advertise one of those (a wildcard stands for one "
      "label "
      "before at least two more)",
      covered.message()));
}

}  // namespace millrace::cluster
