// BackgroundQueue: starts requests that no client waits for, a few at a time, and again later those
// that the service had no room for. Owned by the service. Any thread may post; jobs are started on
// the queue's own thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"

namespace millrace::serve {

class BackgroundQueue {
 public:
  enum class End { kDone, kTryAgain };
  // Starts its request and returns; calls `end` once, from any thread, when the request has ended.
  using Job = std::function<void(std::function<void(End)> end)>;

  // At most `running_max` jobs run, and at most `waiting_max` wait. When one has to be tried again,
  // none starts until another one is done, or for `pause`.
  BackgroundQueue(int running_max, size_t waiting_max, Duration pause);
  ~BackgroundQueue();  // drops what waits; the jobs that run must have ended

  // Returns false, and drops the job, if too many wait.
  bool TryPost(Job job);
  // For jobs whose number the caller bounds.
  void Post(Job job);
  // Nothing starts before this is called.
  void Start();

 private:
  void Run();
  void Ended(std::shared_ptr<Job> job, End end);

  const int running_max_;
  const size_t waiting_max_;
  const Duration pause_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Job>> waiting_ MR_GUARDED_BY(mutex_);
  int running_ MR_GUARDED_BY(mutex_) = 0;
  bool pausing_ MR_GUARDED_BY(mutex_) = false;
  bool started_ MR_GUARDED_BY(mutex_) = false;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::serve
