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

void Mailbox::Put(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    work_.push_back(std::move(work));
  }
  ready_.notify_one();
}

void Mailbox::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [this] { return stopping_ || !work_.empty(); });
    if (stopping_) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace millrace::cluster
