#include "serve/http/worker_pool.h"

#include "base/check.h"
#include "base/task_barrier.h"

namespace millrace::serve {

WorkerPool::WorkerPool(int threads, size_t queue_max) : queue_max_(queue_max) {
  MR_CHECK(threads > 0);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::TryPost(std::function<void()> task) {
  MutexLock lock(mutex_);
  if (tasks_.size() >= queue_max_) return false;
  Push(std::move(task));
  return true;
}

void WorkerPool::Post(std::function<void()> task) {
  MutexLock lock(mutex_);
  Push(std::move(task));
}

void WorkerPool::Push(std::function<void()> task) {
  tasks_.push_back(std::move(task));
  if (idle_ > 0) ready_.notify_one();
}

void WorkerPool::Run() {
  MutexLock lock(mutex_);
  while (true) {
    while (tasks_.empty()) {
      if (stopping_) return;
      ++idle_;
      ready_.wait(lock);
      --idle_;
    }
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    RunTask("a task of a worker thread", task);
    task = nullptr;  // destroys its captures outside the lock
    lock.lock();
  }
}

}  // namespace millrace::serve
