// KvPlane: connects a worker's KvExchange to its process's data plane, which verifies the checksum
// of what it carries.
//
// Owned by the worker process, beside the exchange; any thread may call it. The data plane is set
// after creation, because it serves pulls through this object.
#pragma once

#include "cluster/transfer/kv_exchange.h"
#include "cluster/transfer/pull_messages.h"
#include "cluster/transfer/staging_pool.h"
#include "net/data/data_plane.h"

namespace millrace::cluster {

class KvPlane {
 public:
  // The exchange must outlive it.
  explicit KvPlane(KvExchange& exchange) : exchange_(exchange) {}
  void Use(net::DataPlane* plane);  // call before any pull or serve

  Result<net::PullSource> Serve(const KvRequest& request);

 private:
  KvExchange& exchange_;
  net::DataPlane* plane_ = nullptr;
  StagingPool staging_{kPullChunkBytes};
};

}  // namespace millrace::cluster
