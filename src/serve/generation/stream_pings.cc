#include "serve/generation/stream_pings.h"

#include <chrono>

#include "serve/generation/generation.h"

namespace millrace::serve {
namespace {

constexpr int kLooksPerSilence = 4;  // a ping is at most a quarter late

}  // namespace

StreamPings::StreamPings(Duration silence, const Clock& clock)
    : silence_(silence), clock_(clock), thread_([this] { Run(); }) {}

StreamPings::~StreamPings() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void StreamPings::Add(const std::shared_ptr<Generation>& stream) {
  MutexLock lock(mutex_);
  streams_.push_back(stream);
  if (streams_.size() == 1) changed_.notify_all();
}

void StreamPings::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (streams_.empty()) {
      changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return stopping_ || !streams_.empty(); });
      continue;
    }
    changed_.wait_for(lock, std::chrono::nanoseconds(silence_.ns / kLooksPerSilence),
                      [this]() MR_REQUIRES(mutex_) { return stopping_; });
    std::vector<std::shared_ptr<Generation>> alive;
    for (const auto& stream : streams_) {
      if (auto locked = stream.lock()) alive.push_back(std::move(locked));
    }
    streams_.assign(alive.begin(), alive.end());
    lock.unlock();
    for (const auto& stream : alive) stream->PingIfSilent(clock_.Now(), silence_);
    alive.clear();  // which may destroy some, outside the lock
    lock.lock();
  }
}

}  // namespace millrace::serve
