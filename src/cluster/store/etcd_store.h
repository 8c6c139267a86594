// OpenEtcdStore: a Store in etcd (3.4 or newer, v3 API over gRPC), for a cluster that must survive
// the loss of any one machine. It is as available as etcd: of three members, one may fail. The
// caller owns the store; any thread may call it.
//
// Reads are linearizable. A write is sent once: if the connection breaks before the answer, the
// call returns kUnavailable, and the caller has to read to learn whether it was applied. A watch
// continues at another member where it stopped. etcd's shortest lease is about two seconds; Grant
// returns the granted duration.
//
// Built only if etcd's .proto files are present (scripts/setup unpacks them). Otherwise
// OpenEtcdStore returns kUnimplemented.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/store/store.h"

namespace millrace::cluster {

inline constexpr size_t kEtcdEndpointsMax = 16;

struct EtcdTls {
  std::string ca_file;    // PEM of the CA that signed the members' certificates; empty: no TLS
  std::string cert_file;  // this client's certificate, requires key_file; empty: none
  std::string key_file;
};

struct EtcdStoreOptions {
  std::vector<std::string> endpoints;  // "host:port" of the members
  std::string cluster = "default";
  EtcdTls tls;
};

// Connects on first use, so an unreachable etcd is not an error here. kInvalidArgument: invalid
// options.
Result<std::unique_ptr<Store>> OpenEtcdStore(const EtcdStoreOptions& options);

}  // namespace millrace::cluster
