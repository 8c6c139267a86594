#include "ops/process/process_deadline.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/log.h"

namespace millrace::ops {

ProcessDeadline::ProcessDeadline(const Clock& clock, std::function<void()> before_end)
    : clock_(clock), before_end_(std::move(before_end)), thread_([this] { Watch(); }) {}

ProcessDeadline::~ProcessDeadline() {
  {
    const MutexLock lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ProcessDeadline::EndBy(Time by, int exit_code, std::string unfinished) {
  {
    const MutexLock lock(mutex_);
    if (end_ && end_->by <= by) return;
    end_ = {by, exit_code, std::move(unfinished)};
  }
  changed_.notify_all();
}

void ProcessDeadline::Watch() {
  MutexLock lock(mutex_);
  while (!over_) {
    if (!end_) {
      changed_.wait(lock);
      continue;
    }
    const Duration left = end_->by - clock_.Now();
    if (left <= Duration()) break;
    changed_.wait_for(lock, std::chrono::nanoseconds(left.ns));
  }
  if (over_) return;
  MR_LOG(warn, "ending without waiting for {}", end_->unfinished);
  if (before_end_) before_end_();
  std::fflush(stdout);
  std::_Exit(end_->exit_code);
}

}  // namespace millrace::ops
