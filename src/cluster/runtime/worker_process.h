// WorkerProcess: a worker on the network. It connects a WorkerHost to gRPC (control) and the data
// plane (activations, KV, weights). It joins a controller and serves it. When the session ends, it
// joins again with its weights still loaded.
//
// Owned by main(). Run blocks its thread; any thread may call Stop, Leave, and SetNotice of the
// host.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/link/control_client.h"
#include "cluster/link/link_security.h"
#include "cluster/link/peer_steps.h"
#include "cluster/transfer/kv_exchange.h"
#include "cluster/transfer/kv_plane.h"
#include "cluster/transfer/link_probe.h"
#include "cluster/transfer/weight_exchange.h"
#include "cluster/worker/worker_host.h"
#include "net/data/data_plane.h"

namespace millrace::cluster {

struct WorkerProcessOptions {
  std::vector<std::string> controllers;         // "host:port" each; tried in turn
  std::string control_address = "127.0.0.1:0";  // serves steps to other workers
  std::string data_host = "127.0.0.1";          // serves activations, KV and weights
  uint16_t data_port = 0;
  std::string advertised_host;  // the host that peers connect to; empty: the hosts above
  LinkSecurity security;
  Join join;  // name, identity, device, memory; the address is filled in
  ShardLoader loader;
  std::shared_ptr<WeightExchange> weights;  // shared with the loader; null: no weights from peers
  Duration connect_limit = Duration::Seconds(5);
  Duration retry_most = Duration::Seconds(2);  // between attempts to join
  // A worker whose computing thread has not moved for so long does not join until it does.
  Duration still_limit = Duration::Seconds(3);
  // Run gives up after this time without a controller; nullopt: never.
  std::optional<Duration> alone_limit;
};

class WorkerProcess {
 public:
  // Opens the worker's ports. kInvalidArgument, kUnavailable: the message has the cause in one
  // line.
  static Result<std::unique_ptr<WorkerProcess>> Start(WorkerProcessOptions options,
                                                      const Clock& clock);
  ~WorkerProcess();

  // Joins and serves. Returns OK after Stop or when the controller tells the worker to leave, and
  // an error when the worker is refused for good. A worker that was told to leave may run again.
  Status Run();
  void Stop();  // ends Run, also one that has not begun
  // The worker is to end: Run returns when the controller has let it go, when the session breaks,
  // because nobody is left to hand over to, and at `by` at the latest.
  void Leave(std::optional<Time> by = {});

  WorkerHost& host() { return *host_; }
  net::DataPlaneStats data_stats() const { return data_->stats(); }
  KvExchangeCounters kv_counters() const { return exchange_->counters(); }

 private:
  WorkerProcess(WorkerProcessOptions options, const Clock& clock);
  Status Open();
  WorkerLinks Links();
  LinkProber::TimedTransfer EchoTransfer(ProbedLink link);
  void TryOwnAddress();
  Status ReachesItself(Duration limit);
  void OnActivations(std::span<const std::byte> key, net::Payload payload);
  Result<net::PullSource> ServePull(std::span<const std::byte> request);
  Status OpenControls();
  Status OneSession(bool& joined);
  bool WaitUntilItMoves();
  void WaitForSessionEnd(MutexLock& lock) MR_REQUIRES(mutex_);

  WorkerProcessOptions options_;
  const Clock& clock_;
  Incarnation incarnation_;
  std::atomic<uint64_t> term_{0};
  std::unique_ptr<KvExchange> exchange_;
  std::unique_ptr<KvPlane> kv_plane_;
  std::unique_ptr<WorkerHost> host_;
  std::unique_ptr<net::DataPlane> data_;
  std::unique_ptr<LinkProber> prober_;
  std::unique_ptr<PeerSteps> peers_;
  std::vector<std::unique_ptr<ControlClient>> controls_;  // by controller
  std::atomic<ControlClient*> control_{nullptr};          // of this session, or of the last one

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  bool for_good_ MR_GUARDED_BY(mutex_) = false;
  bool leaving_ MR_GUARDED_BY(mutex_) = false;
  std::optional<Time> leave_by_ MR_GUARDED_BY(mutex_);
  std::optional<Status> session_ended_ MR_GUARDED_BY(mutex_);
  Status last_word_ MR_GUARDED_BY(mutex_);   // why the controller ended the session
  bool ends_ MR_GUARDED_BY(mutex_) = false;  // it is being destroyed

  std::thread own_address_;  // TryOwnAddress
};

}  // namespace millrace::cluster
