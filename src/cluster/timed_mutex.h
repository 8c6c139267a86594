// TimedMutex: std::timed_mutex out of a mutex and a condition, because the thread sanitizer does
// not see through the standard one's waiting.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace millrace::cluster {

class TimedMutex {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    free_.wait(lock, [this] { return !held_; });
    held_ = true;
  }
  bool try_lock_for(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!free_.wait_for(lock, timeout, [this] { return !held_; })) return false;
    held_ = true;
    return true;
  }
  void unlock() {
    {
      std::lock_guard lock(mutex_);
      held_ = false;
    }
    free_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  bool held_ = false;  // guarded by mutex_
};

}  // namespace millrace::cluster
