// ProcessDeadline: ends this process at a time, whatever its threads do then. A process that was
// asked to end may still load weights, or have a thread that stands still; it must not run until
// somebody kills it.
//
// Owned by a command. Any thread may call it. Destroying it takes the deadline back.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"

namespace millrace::ops {

class ProcessDeadline {
 public:
  // `before_end` runs before the process is ended, on a thread of this object.
  explicit ProcessDeadline(const Clock& clock, std::function<void()> before_end = {});
  ~ProcessDeadline();
  ProcessDeadline(const ProcessDeadline&) = delete;
  ProcessDeadline& operator=(const ProcessDeadline&) = delete;

  // The process ends at `by` with the exit code, and logs what it did not wait for. The earliest
  // deadline counts.
  void EndBy(Time by, int exit_code, std::string unfinished);

 private:
  struct End {
    Time by;
    int exit_code = 0;
    std::string unfinished;
  };
  void Watch();

  const Clock& clock_;
  const std::function<void()> before_end_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<End> end_ MR_GUARDED_BY(mutex_);
  bool over_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::ops
