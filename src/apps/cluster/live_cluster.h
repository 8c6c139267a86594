// The cluster file of a running cluster, from its controller. One thread.
#pragma once

#include <string>

#include "apps/cluster/admin_client.h"
#include "base/clock.h"
#include "base/status.h"

namespace millrace::apps {

// Asks the controller of `flags`. With `wait` it asks again and again until each worker has a
// profile and each link was measured, and prints to stderr what lacks. kFailedPrecondition: no
// worker has joined. kDeadlineExceeded: something lacks after `wait`.
Result<std::string> FetchClusterFile(const AdminFlags& flags, Duration wait = {});

}  // namespace millrace::apps
