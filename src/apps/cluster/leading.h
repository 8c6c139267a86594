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

  Term term() const { return leadership_.term; }

  // What leaders leave to each other. Keep fails once this process has stopped leading.
  Status Keep(const std::string& key, const std::string& value);
  Result<std::optional<std::string>> Kept(const std::string& key);

 private:
  Leading() = default;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<cluster::Leadership> elected_;  // guarded by mutex_
  cluster::Leadership leadership_;
  std::unique_ptr<cluster::Store> store_;
  std::unique_ptr<cluster::LeaderElection> election_;  // resigns before the store goes
};

}  // namespace millrace::apps
