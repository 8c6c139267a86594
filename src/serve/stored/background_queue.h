// BackgroundQueue: starts requests that no client waits for, a few at a time, and again later those
// that the service had no room for. Owned by the service. Any thread may post; jobs are started on
// the queue's own thread.
//
// API keys share the queue (serve/http/fair_queue.h): a key whose jobs were the fewest bytes goes
// first, and none may have more than half of the places.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "serve/http/fair_queue.h"

namespace millrace::serve {

class BackgroundQueue {
 public:
  enum class End { kDone, kTryAgain };
  // Starts its request and returns; calls `end` once, from any thread, when the request has ended.
  // One that throws has ended.
  using Job = std::function<void(std::function<void(End)> end)>;

  // At most `running_max` jobs run, and at most `waiting_max` wait. When one has to be tried again,
  // none starts until another one is done, or for `pause`.
  BackgroundQueue(int running_max, size_t waiting_max, Duration pause);
  ~BackgroundQueue();  // drops what waits; the jobs that run must have ended

  // Of the key `owner`; `bytes` are what the job counts for it. Returns false, and drops the job,
  // if too many wait.
  bool TryPost(const std::string& owner, size_t bytes, Job job);
  // For jobs whose number the caller bounds.
  void Post(const std::string& owner, size_t bytes, Job job);
  // Nothing starts before this is called.
  void Start();

 private:
  struct Waiting {
    std::string owner;
    Job job;
    bool runs = false;  // guarded by mutex_
  };

  void Run();
  void Push(std::shared_ptr<Waiting> waiting, int64_t cost) MR_REQUIRES(mutex_);
  void Ended(std::shared_ptr<Waiting> waiting, End end);

  const int running_max_;
  const size_t waiting_max_;
  const Duration pause_;
  Mutex mutex_;
  CondVar changed_;
  FairQueue<std::shared_ptr<Waiting>> waiting_ MR_GUARDED_BY(mutex_);
  int running_ MR_GUARDED_BY(mutex_) = 0;
  bool pausing_ MR_GUARDED_BY(mutex_) = false;
  bool started_ MR_GUARDED_BY(mutex_) = false;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::serve
