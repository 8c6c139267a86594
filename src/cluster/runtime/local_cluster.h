// LocalCluster: a controller and its workers in one process, connected by queues instead of
// sockets. It serves a model without a cluster, and tests use it to kill and hang workers. It owns
// the controller and the workers. Any thread may call it.
//
// Messages between two members arrive in order; activations are not copied. The messages of a step
// do not change threads: the thread that computed a batch delivers the result to the controller and
// the controller's reply to the worker. Other messages run on one thread per worker and one for the
// controller. KV moves between the workers' exchanges (cluster/transfer/kv_exchange.h): an ask is a
// message to the source, which reads the KV on a thread of its own.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/mutex.h"
#include "cluster/runtime/controller_host.h"
#include "cluster/transfer/kv_exchange.h"
#include "cluster/worker/worker_host.h"

namespace millrace::cluster {

class LocalCluster {
 public:
  static Result<std::unique_ptr<LocalCluster>> Start(ControllerHostOptions options,
                                                     const Clock& clock);
  ~LocalCluster();

  ControllerHost& host() { return *host_; }

  // `join.name` and `join.identity` are the caller's; the rest is filled in. Any thread.
  void AddWorker(Join join, ShardLoader loader);
  // Like kill -9: the worker answers no more, its memory is gone, and its peers notice.
  void KillWorker(const std::string& name);
  // Like a network that drops everything: heartbeats stop, no message arrives, the session stays.
  void HangWorker(const std::string& name, bool hung);
  WorkerHost* worker(const std::string& name);
  size_t exported_kv();  // KV of living workers that others may pull

 private:
  struct Member {
    Join join;
    ConnectionId connection;
    bool hung = false;                           // guarded by LocalCluster::mutex_
    std::deque<std::function<void()>> withheld;  // while hung; guarded by LocalCluster::mutex_
    std::unique_ptr<KvExchange> kv;
    std::unique_ptr<WorkerHost> host;
    std::unique_ptr<Mailbox> server;  // answers pulls, and closes the host of a dead worker
    std::unique_ptr<Mailbox> inbox;   // last: its work uses the members above
  };

  explicit LocalCluster(const Clock& clock) : clock_(clock) {}
  std::shared_ptr<Member> Find(Incarnation incarnation);
  std::shared_ptr<Member> Find(ConnectionId connection);
  void End(const std::shared_ptr<Member>& dead, const std::string& reason);
  void FromControllerHost(const std::shared_ptr<Member>& member, std::function<void()> work);
  void PutTo(const std::shared_ptr<Member>& member, std::function<void()> work);
  void FromWorker(const std::shared_ptr<Member>& member, std::function<void()> work,
                  Mailbox::Wake wake = Mailbox::Wake::kYes);
  bool Silent(const std::weak_ptr<Member>& self);
  WorkerLinks LinksFor(const std::weak_ptr<Member>& member);
  KvLink LinkOf(const std::shared_ptr<Member>& member);
  void SendHeartbeats();

  const Clock& clock_;
  Mutex mutex_;
  std::map<ConnectionId, std::shared_ptr<Member>> members_ MR_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Member>> dead_members_ MR_GUARDED_BY(mutex_);
  uint64_t next_connection_ MR_GUARDED_BY(mutex_) = 1;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  CondVar stop_;
  std::unique_ptr<ControllerHost> host_;
  std::unique_ptr<Mailbox> to_host_;
  std::thread heartbeat_thread_;
};

}  // namespace millrace::cluster
