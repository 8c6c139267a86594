// Mailbox: work done in order on a thread of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace millrace::cluster {

// Runs what is put in, in order, on a thread of its own. Put: any thread.
class Mailbox {
 public:
  Mailbox();
  ~Mailbox();  // what is left is dropped
  void Put(std::function<void()> work);

 private:
  void Run();
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> work_;  // guarded by mutex_
  bool stopping_ = false;                   // guarded by mutex_
  std::thread thread_;
};

}  // namespace millrace::cluster
