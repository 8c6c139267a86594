// A few threads for tasks that may block: pull handlers, producers, name lookups. Owned by a plane.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/task_barrier.h"

namespace millrace::net {

// The callers bound the number of tasks (pulls per peer, connections).
class WorkPool {
 public:
  explicit WorkPool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  ~WorkPool() { Stop(); }

  // Any thread. Dropped after Stop.
  void Run(std::function<void()> task) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

  // Finishes running tasks, drops waiting ones. Not from a task.
  void Stop() {
    std::deque<std::function<void()>> dropped;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      dropped.swap(tasks_);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> task;
      {
        MutexLock lock(mutex_);
        wake_.wait(lock, [this]() MR_REQUIRES(mutex_) { return stopping_ || !tasks_.empty(); });
        if (stopping_) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      RunTask("a task of the data plane", task);
    }
  }

  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> tasks_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::net
