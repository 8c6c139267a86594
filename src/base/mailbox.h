// Mailbox: a queue of work that runs in order, one item at a time, on the mailbox's own thread or
// on the thread of a caller. The object that creates it owns it.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace millrace {

// Any thread may call it; work runs without the mailbox's lock.
class Mailbox {
 public:
  enum class Wake { kYes, kNo };

  Mailbox();
  ~Mailbox();  // drops the work that has not begun
  // kNo: the caller is about to call RunHere, so the mailbox's thread need not wake.
  void Put(std::function<void()> work, Wake wake = Wake::kYes);
  // Runs the work on this thread, after the work before it, unless another thread is running the
  // queue: then that thread runs it in its turn.
  void PutOrRun(std::function<void()> work);
  // Runs the queue on this thread, unless another thread is running it.
  void RunHere();

 private:
  void Run();
  // REQUIRES: not running_.
  void DoAll() MR_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar ready_;
  std::deque<std::function<void()>> work_ MR_GUARDED_BY(mutex_);
  bool running_ MR_GUARDED_BY(mutex_) = false;  // a thread is running the queue
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace
