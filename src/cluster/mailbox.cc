#include "cluster/mailbox.h"

#include <utility>

namespace millrace::cluster {

Mailbox::Mailbox() : thread_([this] { Run(); }) {}

Mailbox::~Mailbox() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    work_.clear();
  }
  ready_.notify_all();
  thread_.join();
}

void Mailbox::Put(std::function<void()> work, Wake wake) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    work_.push_back(std::move(work));
    if (running_) return;  // whoever runs sees it
  }
  if (wake == Wake::kYes) ready_.notify_one();
}

void Mailbox::PutOrRun(std::function<void()> work) {
  Lock lock(mutex_);
  if (stopping_) return;
  work_.push_back(std::move(work));
  if (!running_) DoAll(lock);
}

void Mailbox::RunHere() {
  Lock lock(mutex_);
  if (!running_) DoAll(lock);
}

void Mailbox::DoAll(Lock& lock) {
  running_ = true;
  while (!work_.empty()) {
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
  running_ = false;
}

void Mailbox::Run() {
  Lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [this] { return stopping_ || (!work_.empty() && !running_); });
    if (stopping_) return;
    DoAll(lock);
  }
}

}  // namespace millrace::cluster
