// Leading: this process's leadership among the controllers of a cluster: the store, the candidacy
// in its election, and the term that was won. Owned by the command that serves.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/store/etcd_store.h"
#include "cluster/store/leader_election.h"
#include "cluster/store/store.h"

namespace millrace::apps {

class Leading {
 public:
  // Opens the store at `address` (cluster::OpenStore) and waits until this process is the leader.
  // When it loses the leadership, the process exits soon after: a successor serves, and workers
  // obey the higher term.
  static Result<std::unique_ptr<Leading>> Wait(const std::string& address,
                                               const std::string& candidate,
                                               const cluster::EtcdTls& tls, const Clock& clock);

  Term term() const { return leadership_.term; }
  // Identifies the store's contents. Only terms of the same store can be compared.
  const std::string& cluster_id() const { return cluster_id_; }
  // Whether this process is certainly the leader. Once false it stays false. Any thread.
  bool Leads() const;

  // `tell` is called when this process is no longer the leader, before it exits, to inform clients.
  // It has one second. An empty function removes it, and waits while it runs.
  void OnLoss(std::function<void()> tell);

  // Values that a leader stores for its successors. Keep fails when this process is no longer the
  // leader.
  Status Keep(const std::string& key, const std::string& value);
  Result<std::optional<std::string>> Kept(const std::string& key);

 private:
  Leading() = default;
  [[noreturn]] void Lose(const Status& why);
  Result<std::string> NameCluster();
  bool ReportStandby() const;

  Mutex mutex_;
  CondVar changed_;
  std::optional<cluster::Leadership> elected_ MR_GUARDED_BY(mutex_);
  cluster::Leadership leadership_;
  std::string cluster_id_;
  Mutex telling_;
  std::function<void()> tell_ MR_GUARDED_BY(telling_);
  std::unique_ptr<cluster::Store> store_;
  std::unique_ptr<cluster::LeaderElection> election_;  // resigns before the store is destroyed
};

}  // namespace millrace::apps
