// Leading: what lets one of several controllers of a cluster lead: a store, a place in its
// election, and the term it gave. Owned by the command that serves.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/etcd_store.h"
#include "cluster/leader_election.h"
#include "cluster/store.h"

namespace millrace::apps {

class Leading {
 public:
  // Opens `address` (cluster::OpenStore), stands by until this process leads. The process ends when
  // it has stopped leading: a successor serves, and its workers obey the higher term.
  static Result<std::unique_ptr<Leading>> Wait(const std::string& address,
                                               const std::string& candidate,
                                               const cluster::EtcdTls& tls, const Clock& clock);
  ~Leading();  // resigns, and this process goes on

  Term term() const { return term_; }

 private:
  Leading() = default;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Term> elected_;  // guarded by mutex_
  bool resigning_ = false;       // guarded by mutex_
  Term term_;
  std::unique_ptr<cluster::Store> store_;
  std::unique_ptr<cluster::LeaderElection> election_;  // resigns before the store goes
};

}  // namespace millrace::apps
