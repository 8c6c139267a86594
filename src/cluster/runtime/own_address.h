// Whether other processes of the cluster can reach a worker where it tells them to. Plain
// functions; any thread.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/link/link_security.h"

namespace millrace::cluster {

// kInvalidArgument: nobody can reach `host` ("0.0.0.0" names no machine), or the certificate is for
// other hosts, so that everybody who calls this one refuses it. The message says what to change.
Status CheckOwnHost(const std::string& host, const LinkSecurity& security);

}  // namespace millrace::cluster
