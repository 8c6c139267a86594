// WorkerPool: threads that take work off the I/O threads and the controller's thread: rendering and
// tokenizing long prompts, detokenizing, building JSON. Owned by the service. Any thread may post;
// posting never waits for a task. A task that throws is logged and dropped; what it owned, such as
// a reply, ends with it.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace millrace::serve {

class WorkerPool {
 public:
  WorkerPool(int threads, size_t queue_max);
  ~WorkerPool();  // runs what is queued, then joins

  // Returns false, and drops the task, if `queue_max` tasks are already queued.
  bool TryPost(std::function<void()> task);
  // For tasks whose number the caller bounds (one per live request at most).
  void Post(std::function<void()> task);

 private:
  void Run();
  void Push(std::function<void()> task) MR_REQUIRES(mutex_);

  const size_t queue_max_;
  Mutex mutex_;
  CondVar ready_;
  std::deque<std::function<void()>> tasks_ MR_GUARDED_BY(mutex_);
  int idle_ MR_GUARDED_BY(mutex_) = 0;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::serve
