#include "serve/stored/background_queue.h"

#include <chrono>
#include <utility>

namespace millrace::serve {

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

bool BackgroundQueue::TryPost(Job job) {
  {
    MutexLock lock(mutex_);
    if (waiting_.size() >= waiting_max_) return false;
  }
  Post(std::move(job));
  return true;
}

void BackgroundQueue::Post(Job job) {
  MutexLock lock(mutex_);
  waiting_.push_back(std::make_shared<Job>(std::move(job)));
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
    std::shared_ptr<Job> job = std::move(waiting_.front());
    waiting_.pop_front();
    ++running_;
    lock.unlock();
    (*job)([this, job](End end) { Ended(job, end); });
    job.reset();  // outside the lock
    lock.lock();
  }
}

void BackgroundQueue::Ended(std::shared_ptr<Job> job, End end) {
  MutexLock lock(mutex_);
  --running_;
  pausing_ = end == End::kTryAgain;  // one that is done leaves room
  if (pausing_) waiting_.push_back(std::move(job));
  changed_.notify_all();
}

}  // namespace millrace::serve
