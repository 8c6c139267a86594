// Leading: what lets one of several controllers of a cluster lead: a store, a place in its
// election, and the term it gave. Owned by the command that serves.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/etcd_store.h"
#include "cluster/leader_election.h"
#include "cluster/store.h"

namespace millrace::apps {

class Leading {
 public:
  // Opens `address` (cluster::OpenStore), stands by until this process leads. The process ends soon
  // after it has stopped leading: a successor serves, and its workers obey the higher term.
  static Result<std::unique_ptr<Leading>> Wait(const std::string& address,
                                               const std::string& candidate,
                                               const cluster::EtcdTls& tls, const Clock& clock);

  Term term() const { return leadership_.term; }
  // Names the store's contents: terms of one are compared, those of another store mean nothing.
  const std::string& cluster_id() const { return cluster_id_; }
  // For certain: once false it stays so. Any thread.
  bool Leads() const;

  // Called once this process leads no more, before it ends: to tell clients. It has a second. Empty
  // takes it back, and waits while it runs.
  void OnLoss(std::function<void()> tell);

  // What leaders leave to each other. Keep fails once this process has stopped leading.
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
  std::unique_ptr<cluster::LeaderElection> election_;  // resigns before the store goes
};

}  // namespace millrace::apps
