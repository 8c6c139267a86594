// TimedMutex: a std::timed_mutex made of a mutex and a condition variable, because the thread
// sanitizer does not understand the timed waits of the standard one. TimedMutexLock holds one until
// the end of its scope. Any thread may call a TimedMutex; one thread uses a TimedMutexLock.
#pragma once

#include <chrono>

#include "base/mutex.h"

namespace millrace::cluster {

class MR_CAPABILITY("mutex") TimedMutex {
 public:
  void lock() MR_ACQUIRE() {
    MutexLock lock(mutex_);
    while (held_) free_.wait(lock);
    held_ = true;
  }
  bool try_lock_for(std::chrono::nanoseconds timeout) MR_TRY_ACQUIRE(true) {
    MutexLock lock(mutex_);
    const auto is_free = [this]() MR_REQUIRES(mutex_) { return !held_; };
    if (!free_.wait_for(lock, timeout, is_free)) return false;
    held_ = true;
    return true;
  }
  void unlock() MR_RELEASE() {
    {
      MutexLock lock(mutex_);
      held_ = false;
    }
    free_.notify_one();
  }

 private:
  Mutex mutex_;
  CondVar free_;
  bool held_ MR_GUARDED_BY(mutex_) = false;
};

class MR_SCOPED_CAPABILITY TimedMutexLock {
 public:
  explicit TimedMutexLock(TimedMutex& mutex) MR_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // Adopts a mutex that this thread already holds.
  TimedMutexLock(TimedMutex& mutex, std::adopt_lock_t) MR_REQUIRES(mutex) : mutex_(mutex) {}
  ~TimedMutexLock() MR_RELEASE() { mutex_.unlock(); }
  TimedMutexLock(const TimedMutexLock&) = delete;
  TimedMutexLock& operator=(const TimedMutexLock&) = delete;

  // For waits on a condition variable, which release the mutex and acquire it again.
  void lock() MR_ACQUIRE() { mutex_.lock(); }
  void unlock() MR_RELEASE() { mutex_.unlock(); }

 private:
  TimedMutex& mutex_;
};

}  // namespace millrace::cluster
