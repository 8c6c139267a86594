// Supervisor: keeps a set of child processes running. A child that dies is started again, after a
// pause that grows while it keeps dying. A child that exits with 0 has finished, and one that exits
// with 2 (wrong usage) would do so again: both stay down.
//
// Owned by a command. A thread of its own spawns, reads, reaps and signals the children and calls
// the callbacks, which must be quick. When this process ends for any reason, so do the children.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mutex.h"
#include "base/status.h"

namespace millrace::ops {

struct ChildSpec {
  std::string name;                      // precedes its lines
  std::vector<std::string> argv;         // argv[0]: the program's path
  std::vector<std::string> environment;  // "NAME=value", added to ours
  int stop_order = 0;                    // children of a lower order are stopped first
};

struct SupervisorOptions {
  Duration pause_first = Duration::Seconds(0.1);  // before a dead child is started again
  Duration pause_most = Duration::Seconds(5);     // each early death doubles the pause up to this
  Duration early = Duration::Seconds(10);         // a child that ran longer did not die early
  Duration stop_limit = Duration::Seconds(30);    // from SIGTERM to SIGKILL, for each order
  std::function<void(std::string_view name, std::string_view line)> on_line;
};

struct ChildStatus {
  std::string name;
  std::optional<pid_t> pid;  // while it runs
  int starts = 0;
  std::optional<int> last_exit;  // 0 to 255, or 128 plus the signal's number
  bool stays_down = false;
};

// The pause after the `deaths`-th early death in a row, from 1.
Duration RestartPause(const SupervisorOptions& options, int deaths);

class Supervisor {
 public:
  // Starts all of them. kFailedPrecondition when one cannot be executed; then none runs.
  static Result<std::unique_ptr<Supervisor>> Start(SupervisorOptions options,
                                                   std::vector<ChildSpec> children);
  ~Supervisor();  // BeginStop() and Wait()

  // From now on no child is started. Sends SIGTERM order by order, and SIGKILL after the limit.
  void BeginStop();
  // Kills what still runs, at once.
  void Kill();
  // Sends a signal to that child, which is started again if it dies of it. False: it does not run.
  bool Signal(std::string_view name, int number);
  // Waits until no child runs and none will be started: after BeginStop or Kill, or when all stay
  // down.
  void Wait();

  std::vector<ChildStatus> Describe() const;

 private:
  struct Child;
  Supervisor(SupervisorOptions options, std::vector<ChildSpec> children);
  void Run();
  bool StartDue(Time now) MR_REQUIRES(mutex_);
  void Ended(Child& child, Time now) MR_REQUIRES(mutex_);
  void AdvanceStop(Time now) MR_REQUIRES(mutex_);
  bool Over() const MR_REQUIRES(mutex_);
  void Poll(Time now);
  void Wake() const;
  void Say(const Child& child, std::string_view line) const;

  const SupervisorOptions options_;
  const SteadyClock clock_;
  UniqueFd wake_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Child>> children_ MR_GUARDED_BY(mutex_);
  std::optional<Status> started_ MR_GUARDED_BY(mutex_);  // how the first starts went
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  bool killing_ MR_GUARDED_BY(mutex_) = false;
  bool over_ MR_GUARDED_BY(mutex_) = false;
  std::optional<int> order_stopped_;  // the highest that got SIGTERM; thread_'s
  Time kill_at_;                      // thread_'s
  std::thread thread_;
};

}  // namespace millrace::ops
