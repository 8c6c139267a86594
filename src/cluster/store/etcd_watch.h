// EtcdWatch: one watch of an etcd store. Its thread delivers a listing, then reads a stream of
// changes. When the stream breaks, it continues after the last delivered change. Owned by the
// watcher; the callback runs on the watch's thread.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "cluster/store/etcd_client.h"
#include "cluster/store/store.h"

namespace millrace::cluster {

class EtcdWatch : public Watch {
 public:
  using List = std::function<Result<Listing>()>;

  // Watches keys that begin with `prefix`, and strips the first `hidden_bytes` of each key.
  EtcdWatch(EtcdClient& client, std::string prefix, size_t hidden_bytes, List list,
            Store::WatchCallback callback);
  ~EtcdWatch() override;

 private:
  using Stream = grpc::ClientReaderWriter<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>;

  void Run();
  bool DeliverSnapshot();
  void ReadChanges();
  // Returns false when the stream has to be closed.
  bool Deliver(const etcdserverpb::WatchResponse& response);
  void Pause();

  EtcdClient& client_;
  const std::string prefix_;
  const size_t hidden_bytes_;
  const List list_;
  const Store::WatchCallback callback_;

  // Used by the thread only.
  std::optional<int64_t> next_revision_;  // nullopt: list first
  bool lost_ = false;

  std::atomic<bool> stopping_ = false;
  Mutex mutex_;
  CondVar stopped_;
  grpc::ClientContext* reading_ MR_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

KeyValue FromEtcd(const mvccpb::KeyValue& entry, size_t hidden_bytes);

}  // namespace millrace::cluster
