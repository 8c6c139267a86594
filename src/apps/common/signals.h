// StopSignals: counts SIGINT and SIGTERM, so that a command can wait for them. Create it before any
// other thread: it blocks both in all threads, and receives them on a thread of its own. It also
// blocks SIGUSR2, which ends that thread. With kReloads it receives SIGHUP too, which by default
// ends a process.
#pragma once

#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"

namespace millrace::apps {

enum class Hangup { kEnds, kReloads };

class StopSignals {
 public:
  explicit StopSignals(Hangup hangup = Hangup::kEnds);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int count() const;
  // Waits for a signal that has not been waited for yet.
  void Wait();
  // Runs on the watcher's thread at each signal, with the count so far (from 1).
  void OnSignal(std::function<void(int count)> callback);
  // The same for SIGHUP, which does not count; without a callback it has no effect. The callback
  // must be quick and not call this object; it does not run any more when it has been replaced.
  void OnHangup(std::function<void()> callback);

 private:
  void Watch();
  void Reload();

  const Hangup hangup_;
  mutable Mutex mutex_;
  CondVar came_;
  int count_ MR_GUARDED_BY(mutex_) = 0;
  int waited_ MR_GUARDED_BY(mutex_) = 0;
  std::function<void(int)> callback_ MR_GUARDED_BY(mutex_);
  std::function<void()> on_hangup_ MR_GUARDED_BY(mutex_);
  std::thread watcher_;
};

// Model files stay mapped while the model is served. If one is truncated or its disk fails, the
// next read of it raises SIGBUS. The process then prints one line and exits with 1, because it
// could not compute a correct answer any more.
void ExplainLostModelFiles();

// Raises the limit of open files as far as the system allows, because each connection is a socket.
void RaiseFileLimit();

}  // namespace millrace::apps
