#include "serve/stored/background_queue.h"

#include <chrono>
#include <utility>

#include "base/task_barrier.h"

namespace millrace::serve {
namespace {

constexpr int64_t kJobCostBytes = 1024;  // of each job, beside its text

}  // namespace

BackgroundQueue::BackgroundQueue(int running_max, size_t waiting_max, Duration pause)
    : running_max_(running_max),
      waiting_max_(waiting_max),
      pause_(pause),
      thread_([this] { Run(); }) {}

BackgroundQueue::~BackgroundQueue() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

bool BackgroundQueue::TryPost(const std::string& owner, size_t bytes, Job job) {
  MutexLock lock(mutex_);
  const bool full = waiting_.size() >= waiting_max_;
  const bool has_its_share = !owner.empty() && 2 * waiting_.size_of(owner) >= waiting_max_;
  if (full || has_its_share) return false;
  Push(std::make_shared<Waiting>(Waiting{owner, std::move(job)}),
       static_cast<int64_t>(bytes) + kJobCostBytes);
  return true;
}

void BackgroundQueue::Post(const std::string& owner, size_t bytes, Job job) {
  MutexLock lock(mutex_);
  Push(std::make_shared<Waiting>(Waiting{owner, std::move(job)}),
       static_cast<int64_t>(bytes) + kJobCostBytes);
}

void BackgroundQueue::Push(std::shared_ptr<Waiting> waiting, int64_t cost) {
  const std::string owner = waiting->owner;
  waiting_.Push(owner, cost, std::move(waiting));
  changed_.notify_all();
}

void BackgroundQueue::Start() {
  MutexLock lock(mutex_);
  started_ = true;
  changed_.notify_all();
}

void BackgroundQueue::Run() {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this]() MR_REQUIRES(mutex_) {
      return stopping_ || (started_ && !waiting_.empty() && running_ < running_max_);
    });
    if (pausing_) {
      changed_.wait_for(lock, std::chrono::nanoseconds(pause_.ns),
                        [this]() MR_REQUIRES(mutex_) { return stopping_ || !pausing_; });
      pausing_ = false;
    }
    if (stopping_) return;
    std::shared_ptr<Waiting> next = *waiting_.Pop();
    ++running_;
    next->runs = true;
    lock.unlock();
    const auto run = [&] { next->job([this, next](End end) { Ended(next, end); }); };
    if (!RunTask("a request in the background", run)) Ended(next, End::kDone);
    next.reset();  // outside the lock
    lock.lock();
  }
}

void BackgroundQueue::Ended(std::shared_ptr<Waiting> waiting, End end) {
  MutexLock lock(mutex_);
  if (!std::exchange(waiting->runs, false)) return;  // it ended before it threw
  --running_;
  pausing_ = end == End::kTryAgain;           // one that is done leaves room
  if (pausing_) Push(std::move(waiting), 0);  // its first turn has been counted
  changed_.notify_all();
}

}  // namespace millrace::serve
