// Leading: this process's leadership among the controllers of a cluster: the store, the candidacy
// in its election, and the term that was won. Owned by the command that serves.
#pragma once

#include <atomic>
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

namespace millrace::ops {

class Leading {
 public:
  // Opens the store at `address` (cluster::OpenStore) and waits until this process is the leader.
  // When another process leads, this one exits soon after: workers obey the higher term. A lease
  // that ended while this process stood still, or could not reach the store, is taken again.
  static Result<std::unique_ptr<Leading>> Wait(const std::string& address,
                                               const std::string& candidate,
                                               const cluster::EtcdTls& tls, const Clock& clock);

  Term term() const { return term_; }
  // Identifies the store's contents. Only terms of the same store can be compared.
  const std::string& cluster_id() const { return cluster_id_; }
  // Gives the store's contents another identity, because its terms have begun again.
  Status ChooseClusterId();
  // Whether the lease lasts: no other process leads. Any thread.
  bool HoldsLease() const { return election_->leadership().has_value(); }
  // Another process is known to lead. Any thread.
  void GiveWay(const Status& why) { election_->GiveWay(why); }
  // Whether no other process is known to have led since. Once false it stays false. Any thread.
  bool Leads() const { return !lost_; }

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
  Status NameCluster();
  cluster::Fence fence() const;
  bool ReportStandby() const;

  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<cluster::Leadership> elected_ MR_GUARDED_BY(mutex_);  // the fence may change
  Term term_;
  std::atomic<bool> lost_ = false;
  std::string cluster_id_;
  Mutex telling_;
  std::function<void()> tell_ MR_GUARDED_BY(telling_);
  std::unique_ptr<cluster::Store> store_;
  std::unique_ptr<cluster::LeaderElection> election_;  // resigns before the store is destroyed
};

}  // namespace millrace::ops
