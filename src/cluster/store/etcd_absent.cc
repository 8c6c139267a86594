// Replaces etcd_store.cc in a build without etcd's .proto files.
#include "cluster/store/etcd_store.h"

namespace millrace::cluster {

Result<std::unique_ptr<Store>> OpenEtcdStore(const EtcdStoreOptions&) {
  return Unimplemented("this build has no etcd client: run scripts/setup and build again");
}

}  // namespace millrace::cluster
