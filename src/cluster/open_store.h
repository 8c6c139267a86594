// OpenStore: the store that an address names, as a person writes it.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "cluster/etcd_store.h"
#include "cluster/store.h"

namespace millrace::cluster {

// "etcd://HOST:PORT[,HOST:PORT...]" or "sqlite:FOLDER" (one process, not highly available).
// kInvalidArgument for any other address, and for TLS with a store that has no connection.
Result<std::unique_ptr<Store>> OpenStore(const std::string& address, const std::string& cluster,
                                         const EtcdTls& tls, const Clock& clock);

}  // namespace millrace::cluster
