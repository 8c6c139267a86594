// EtcdWatch: one watch of an etcd store: a thread that lists, then reads a stream of changes, and
// goes on behind the last change it told when the stream breaks.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "cluster/etcd_client.h"
#include "cluster/store.h"

namespace millrace::cluster {

class EtcdWatch : public Watch {
 public:
  using List = std::function<Result<Listing>()>;

  // Watches whole keys that begin with `prefix`; the first `hidden_bytes` of each are not told.
  EtcdWatch(EtcdClient& client, std::string prefix, size_t hidden_bytes, List list,
            Store::WatchCallback callback);
  ~EtcdWatch() override;

 private:
  using Stream = grpc::ClientReaderWriter<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>;

  void Run();
  bool TellSnapshot();
  void ReadChanges();
  // False when the stream is of no more use.
  bool Tell(const etcdserverpb::WatchResponse& response);
  void Pause();

  EtcdClient& client_;
  const std::string prefix_;
  const size_t hidden_bytes_;
  const List list_;
  const Store::WatchCallback callback_;

  // The thread's.
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
