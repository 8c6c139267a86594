// Mailbox: work done in order, one after the other: on a thread of its own, or on a caller's that
// has time for it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

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
  using Lock = std::unique_lock<std::mutex>;
  void Run();
  void DoAll(Lock& lock);  // REQUIRES: !running_

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
  bool running_ = false;                    // guarded by mutex_: somebody does what is there
  bool stopping_ = false;                   // guarded by mutex_
  std::thread thread_;
};

}  // namespace millrace::cluster
