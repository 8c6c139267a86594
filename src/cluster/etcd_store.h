// The store of a cluster that must outlive any one machine: etcd, v3 API over gRPC, 3.4 or newer.
// Highly available as far as its etcd is: with three members one may die.
//
// Reads are linearizable. A write is sent once: when its connection breaks on the way the caller is
// told kUnavailable and reads again. Watches go on at another member where they stopped. etcd's
// shortest lease is about two seconds; Grant says what it gave.
//
// Built only where etcd's .proto files are (scripts/setup unpacks them); otherwise OpenEtcdStore
// says kUnimplemented.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/store.h"

namespace millrace::cluster {

inline constexpr size_t kEtcdEndpointsMax = 16;

struct EtcdTls {
  std::string ca_file;    // PEM of who signed the members' certificates; empty: no TLS
  std::string cert_file;  // of this client, with key_file; empty: none
  std::string key_file;
};

struct EtcdStoreOptions {
  std::vector<std::string> endpoints;  // "host:port" of the members
  std::string cluster = "default";
  EtcdTls tls;
};

// Connects when first used: an etcd that is down is no error here. kInvalidArgument for options
// that cannot be right.
Result<std::unique_ptr<Store>> OpenEtcdStore(const EtcdStoreOptions& options);

}  // namespace millrace::cluster
