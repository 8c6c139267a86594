// Mailbox: work done in order, one after the other: on a thread of its own, or on a caller's that
// has time for it.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "base/mutex.h"

namespace millrace::cluster {

// Any thread may call it; work runs without the mailbox's lock.
class Mailbox {
 public:
  enum class Wake { kYes, kNo };

  Mailbox();
  ~Mailbox();  // what is left is dropped
  // kNo: the caller is about to call RunHere, and a thread need not wake for it.
  void Put(std::function<void()> work, Wake wake = Wake::kYes);
  // At once when nothing is before it, else in its turn.
  void PutOrRun(std::function<void()> work);
  // Runs what is there, unless another thread is at it.
  void RunHere();

 private:
  void Run();
  // Not while running_.
  void DoAll() MR_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar ready_;
  std::deque<std::function<void()>> work_ MR_GUARDED_BY(mutex_);
  bool running_ MR_GUARDED_BY(mutex_) = false;  // somebody does what is there
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::cluster
