// BodyPool: threads that handle requests whose bodies are too large for an I/O thread, or that wait
// for the disk. A request waits only behind those of about its size or smaller: there is a thread
// for each class of size. Within a class the API keys share the thread (fair_queue.h).
//
// The memory of what waits has a limit. When it is reached, requests whose clients have left make
// room; then the newest of the key that holds most; or else the new one is refused. Owned by the
// service. Any thread may post; posting never waits for a task. A task that throws is logged and
// dropped; what it owned, such as a reply, ends with it.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "serve/http/fair_queue.h"

namespace millrace::serve {

struct BodyTask {
  std::string owner;  // Call::owner
  size_t bytes = 0;   // that it holds while it waits
  std::function<void()> run;
  std::function<bool()> unwanted;  // its client has left; null: always wanted
  std::function<void()> refuse;    // instead of run: there is no room
};

class BodyPool {
 public:
  // One thread for tasks of up to each of these bytes, in increasing order. The last one takes all
  // others, too. The limits are of each class.
  BodyPool(std::vector<size_t> classes, size_t waiting_max, size_t waiting_bytes_max);
  ~BodyPool();  // runs what is queued, then joins

  // Runs it on a thread of the pool, or refuses it, or another one in its place, on this thread.
  void Post(BodyTask task);
  // For tasks without a client whose number the caller bounds.
  void PostAlways(std::function<void()> run);

 private:
  struct Class {
    size_t bytes_max = 0;
    CondVar ready;
    FairQueue<BodyTask> tasks;  // guarded by mutex_
    std::thread thread;
  };
  Class& ClassOf(size_t bytes);
  void Run(Class& of);
  // Adds to `out` what has to leave the class. False: there is no room for the task.
  bool MakeRoom(Class& of, const BodyTask& task, std::vector<BodyTask>& out) MR_REQUIRES(mutex_);
  bool HasRoom(const Class& of, const BodyTask& task) const MR_REQUIRES(mutex_);

  const size_t waiting_max_, waiting_bytes_max_;
  Mutex mutex_;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::deque<Class> classes_;
};

}  // namespace millrace::serve
