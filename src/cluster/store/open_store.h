// OpenStore: opens the store that a user's address names. The caller owns the store. Any thread.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "cluster/store/etcd_store.h"
#include "cluster/store/store.h"

namespace millrace::cluster {

// "etcd://HOST:PORT[,HOST:PORT...]" or "sqlite:FOLDER" (one process, not highly available).
// kInvalidArgument: any other address, or TLS for the embedded store.
Result<std::unique_ptr<Store>> OpenStore(const std::string& address, const std::string& cluster,
                                         const EtcdTls& tls, const Clock& clock);

}  // namespace millrace::cluster
