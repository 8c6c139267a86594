// LocalCluster: a controller and its workers in one process, over queues instead of sockets. What
// serves a model without a cluster, and what tests take workers away from.
//
// Messages are carried in order per pair, activations without a copy. What goes round with every
// step changes no thread: a batch's result is taken to the controller, and what the controller says
// to that back to the worker, on the thread that computed it. The rest has a thread per worker and
// one for the controller. Pulls have a thread of their own at the receiving worker: one that waits
// for its source must not hold up the message that another source waits for.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/controller_host.h"
#include "cluster/kv_exports.h"
#include "cluster/mailbox.h"
#include "cluster/worker_host.h"

namespace millrace::cluster {

class LocalCluster {
 public:
  static Result<std::unique_ptr<LocalCluster>> Start(ControllerHostOptions options,
                                                     const Clock& clock);
  ~LocalCluster();

  ControllerHost& host() { return *host_; }

  // `join.name` and `join.identity` are the caller's; the rest is filled in. Any thread.
  void AddWorker(Join join, ShardLoader loader);
  // As kill -9 would: it answers nothing more, its memory is gone, its peers notice.
  void KillWorker(const std::string& name);
  // As a wall of silence would: heartbeats stop, nothing arrives, the session stays.
  void HangWorker(const std::string& name, bool hung);
  WorkerHost* worker(const std::string& name);
  size_t exposed_kv();  // KV of living workers that others may pull

 private:
  struct Member {
    Join join;
    ConnectionId connection;
    bool hung = false;                           // guarded by LocalCluster::mutex_
    std::deque<std::function<void()>> withheld;  // while hung; guarded by LocalCluster::mutex_
    KvExports kv;                                // guarded by LocalCluster::mutex_
    std::unique_ptr<WorkerHost> host;
    std::unique_ptr<Mailbox> pulls;
    std::unique_ptr<Mailbox> inbox;  // last: its work uses the rest
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
  void Pull(const std::shared_ptr<Member>& member, LayerRange layers,
            const std::shared_ptr<engine::Stage>& stage, const PullKv& pull);
  Status PullPieces(const Member& member, LayerRange layers, engine::Stage& stage,
                    const PullKv& pull, int64_t& bytes);
  Status ReadFrom(const KvSource& source, const engine::KvBox& box, std::span<std::byte> out);
  void Beat();

  const Clock& clock_;
  Mutex mutex_;
  std::map<ConnectionId, std::shared_ptr<Member>> members_ MR_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Member>> graveyard_ MR_GUARDED_BY(mutex_);
  uint64_t next_connection_ MR_GUARDED_BY(mutex_) = 1;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  CondVar stop_;
  std::unique_ptr<ControllerHost> host_;
  std::unique_ptr<Mailbox> to_host_;
  std::thread beat_;
};

}  // namespace millrace::cluster
