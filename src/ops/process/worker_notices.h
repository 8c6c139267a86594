// WorkerNotices: what a worker process does about notices of its machine's end (docs/spot.md). It
// tells the controller of each, and that it stays when one is withdrawn. Once it has handed over
// everything, it waits for the end, because whoever supervises it would start it again on a machine
// that goes away. If the notice is withdrawn meanwhile, it joins again. After a signal it just
// ends: by its grace at the latest, also while weights load or a thread stands still.
//
// Owned by the worker's command, and destroyed before the worker.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/runtime/worker_process.h"
#include "notice/watcher.h"
#include "ops/process/process_deadline.h"

namespace millrace::ops {

class WorkerNotices {
 public:
  // How long it waits beyond its machine's end.
  static constexpr Duration kWaitBeyond = Duration::Seconds(10);
  // How long the process takes at most to end once it hands nothing over any more.
  static constexpr Duration kEndLimit = Duration::Seconds(5);

  static Result<std::unique_ptr<WorkerNotices>> Start(notice::Watched watched,
                                                      cluster::WorkerProcess& worker,
                                                      ProcessDeadline& deadline,
                                                      const Clock& clock);

  // The `count`-th SIGINT or SIGTERM. The first hands over running requests, the second ends Run.
  // Any thread.
  void OnSignal(int count);
  // Runs the worker until it is over for good. The caller's thread.
  Status Run();

 private:
  WorkerNotices(cluster::WorkerProcess& worker, ProcessDeadline& deadline, const Clock& clock)
      : worker_(worker), deadline_(deadline), clock_(clock) {}
  void OnChange(const std::optional<notice::Notice>& now);
  bool AwaitsEnd() const MR_REQUIRES(mutex_);
  // True: the notice was withdrawn. False: the process ends.
  bool WaitForWithdrawal();

  cluster::WorkerProcess& worker_;
  ProcessDeadline& deadline_;
  const Clock& clock_;

  Mutex mutex_;
  CondVar changed_;
  std::optional<notice::Notice> notice_ MR_GUARDED_BY(mutex_);
  bool signalled_ MR_GUARDED_BY(mutex_) = false;

  std::unique_ptr<notice::Watcher> watcher_;  // calls OnChange
};

}  // namespace millrace::ops
