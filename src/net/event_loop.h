// EventLoop: one thread that waits for sockets, timers and posted functions. Owned by a data plane
// or an HTTP client.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/mutex.h"

namespace millrace::net {

// A watched socket's owner. Runs on the loop's thread. Only a posted function may free it, because
// pending events may still refer to it.
class EventHandler {
 public:
  virtual ~EventHandler() = default;
  virtual void OnEvents(uint32_t events) = 0;  // of epoll
};

class EventLoop {
 public:
  using Task = std::function<void()>;
  using Timer = std::pair<Time, uint64_t>;

  EventLoop();
  ~EventLoop();  // REQUIRES: stopped, or never started

  void Start();
  // Runs the posted functions until none is left, then joins; later posts are dropped. Not from the
  // loop's thread.
  void Stop();
  bool InThread() const { return std::this_thread::get_id() == thread_id_; }

  // Any thread.
  void Post(Task task);
  void Watch(int fd, uint32_t events, EventHandler* handler);
  void Change(int fd, uint32_t events, EventHandler* handler);
  void Unwatch(int fd);
  // The same where the descriptor may be closed already, which ends the watch too.
  void UnwatchClosed(int fd);

  // The loop's thread.
  Timer At(Time when, Task task);
  void Cancel(const Timer& timer) { timers_.erase(timer); }
  Time Now() const { return clock_.Now(); }

 private:
  void Run();
  void RunPosted();
  void RunTimers();
  int TimeoutMs();
  void Wake();

  const SteadyClock clock_;
  UniqueFd epoll_;
  UniqueFd wake_;
  Mutex mutex_;
  std::vector<Task> posted_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  bool stopped_ MR_GUARDED_BY(mutex_) = false;
  std::vector<Task> running_;
  std::map<Timer, Task> timers_;
  uint64_t timers_made_ = 0;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_;
};

}  // namespace millrace::net
