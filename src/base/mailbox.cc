#include "base/mailbox.h"

#include <utility>

namespace millrace {

Mailbox::Mailbox() : thread_([this] { Run(); }) {}

Mailbox::~Mailbox() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_.clear();
  }
  ready_.notify_all();
  thread_.join();
}

void Mailbox::Put(std::function<void()> work, Wake wake) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    work_.push_back(std::move(work));
    if (running_) return;  // the running thread picks it up
  }
  if (wake == Wake::kYes) ready_.notify_one();
}

void Mailbox::PutOrRun(std::function<void()> work) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  work_.push_back(std::move(work));
  if (!running_) DoAll();
}

void Mailbox::RunHere() {
  MutexLock lock(mutex_);
  if (!running_) DoAll();
}

void Mailbox::DoAll() {
  running_ = true;
  while (!work_.empty()) {
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    mutex_.unlock();
    work();
    mutex_.lock();
  }
  running_ = false;
}

void Mailbox::Run() {
  MutexLock lock(mutex_);
  while (true) {
    ready_.wait(
        lock, [this]() MR_REQUIRES(mutex_) { return stopping_ || (!work_.empty() && !running_); });
    if (stopping_) return;
    DoAll();
  }
}

}  // namespace millrace
