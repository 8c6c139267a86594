// WatchLog: records the updates of a watch, and waits for them with a deadline. Owned by the test.
// The callback may run on any thread.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cluster/store/store.h"

namespace millrace::cluster::testing {

inline constexpr std::chrono::seconds kPatience{60};  // far beyond what any store needs

class WatchLog {
 public:
  Store::WatchCallback Callback() {
    return [this](const WatchUpdate& update) {
      MutexLock lock(mutex_);
      if (update.snapshot) {
        ++snapshots_;
        known_.clear();
        for (const KeyValue& entry : update.snapshot->entries) known_[entry.key] = entry.value;
      }
      if (!update.status.ok()) last_problem_ = update.status;
      for (const WatchEvent& event : update.events) {
        if (event.kind == WatchEvent::Kind::kPut) {
          known_[event.entry.key] = event.entry.value;
        } else {
          known_.erase(event.entry.key);
        }
        events_.push_back(event);
      }
      changed_.notify_all();
    };
  }

  bool WaitFor(const std::function<bool(const WatchLog&)>& done) {
    MutexLock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&]() MR_REQUIRES(mutex_) { return done(*this); });
  }
  bool WaitForSnapshot() {
    return WaitFor([](const WatchLog& log) { return log.snapshots_ > 0; });
  }

  // Only inside WaitFor, or after the last update.
  int snapshots() const { return snapshots_; }
  const std::vector<WatchEvent>& events() const { return events_; }
  const std::map<std::string, std::string>& known() const { return known_; }
  const Status& last_problem() const { return last_problem_; }

 private:
  Mutex mutex_;
  CondVar changed_;
  int snapshots_ = 0;
  std::vector<WatchEvent> events_;
  std::map<std::string, std::string> known_;  // the keys and values after all updates
  Status last_problem_;
};

}  // namespace millrace::cluster::testing
