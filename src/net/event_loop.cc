#include "net/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"

namespace millrace::net {
namespace {

constexpr int kEventsPerLook = 64;
constexpr int kWaitMaxMs = 60'000;

}  // namespace

EventLoop::EventLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  MR_CHECK(epoll_.get() >= 0 && wake_.get() >= 0) << "out of file descriptors";
  Watch(wake_.get(), EPOLLIN, nullptr);
}

EventLoop::~EventLoop() { MR_CHECK(!thread_.joinable()); }

void EventLoop::Start() {
  thread_ = std::thread([this] {
    thread_id_ = std::this_thread::get_id();
    Run();
  });
}

void EventLoop::Stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  timers_.clear();
  thread_id_ = std::thread::id();
}

void EventLoop::Post(Task task) {
  bool first = false;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    first = posted_.empty();
    posted_.push_back(std::move(task));
  }
  if (first && !InThread()) Wake();
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));  // full: awake anyway
}

void EventLoop::Watch(int fd, uint32_t events, EventHandler* handler) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = handler;
  MR_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) << "errno " << errno;
}

void EventLoop::Change(int fd, uint32_t events, EventHandler* handler) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = handler;
  MR_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) << "errno " << errno;
}

void EventLoop::Unwatch(int fd) {
  MR_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0) << "errno " << errno;
}

void EventLoop::UnwatchClosed(int fd) {
  const bool removed = epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0;
  MR_CHECK(removed || errno == EBADF || errno == ENOENT) << "errno " << errno;
}

EventLoop::Timer EventLoop::At(Time when, Task task) {
  const Timer timer(when, timers_made_++);
  timers_.emplace(timer, std::move(task));
  return timer;
}

void EventLoop::RunTimers() {
  if (timers_.empty()) return;
  const Time now = Now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
  }
}

void EventLoop::RunPosted() {
  {
    MutexLock lock(mutex_);
    running_.swap(posted_);
  }
  for (Task& task : running_) task();
  running_.clear();
}

int EventLoop::TimeoutMs() {
  {
    MutexLock lock(mutex_);
    if (!posted_.empty() || stopping_) return 0;
  }
  if (timers_.empty()) return -1;
  const Duration left = timers_.begin()->first.first - Now();
  if (left <= Duration{}) return 0;
  return static_cast<int>(std::min<int64_t>(left.ns / 1'000'000 + 1, kWaitMaxMs));
}

void EventLoop::Run() {
  std::array<epoll_event, kEventsPerLook> events;
  while (true) {
    const int n = epoll_wait(epoll_.get(), events.data(), kEventsPerLook, TimeoutMs());
    MR_CHECK(n >= 0 || errno == EINTR) << "errno " << errno;
    for (int i = 0; i < n; ++i) {
      auto* handler = static_cast<EventHandler*>(events[i].data.ptr);
      if (handler != nullptr) {
        handler->OnEvents(events[i].events);
      } else {
        uint64_t count;
        [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
      }
    }
    RunTimers();
    RunPosted();
    MutexLock lock(mutex_);
    if (stopping_ && posted_.empty()) {
      stopped_ = true;
      return;
    }
  }
}

}  // namespace millrace::net
