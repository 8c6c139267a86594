// PullAnswers: the answers to the asks of one pull, from the threads of a link to the thread that
// runs the pull. Shared with the callbacks, because a pull may end before they have all been
// called. Any thread may call it.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "cluster/transfer/pull_buffers.h"

namespace millrace::cluster {

struct PullAnswer {
  uint64_t part = 0;
  Status status;
  PullBuffer buffer;
  uint64_t written = 0;  // of the buffer

  std::span<const std::byte> bytes() const { return buffer.bytes.first(written); }
};

class PullAnswers {
 public:
  void Add(PullAnswer answer) {
    const MutexLock lock(mutex_);
    arrived_.push_back(std::move(answer));
    changed_.notify_one();
  }
  // May return none, at the latest after `limit`.
  std::vector<PullAnswer> Wait(Duration limit) {
    MutexLock lock(mutex_);
    if (arrived_.empty()) changed_.wait_for(lock, std::chrono::nanoseconds(limit.ns));
    return std::exchange(arrived_, {});
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<PullAnswer> arrived_ MR_GUARDED_BY(mutex_);
};

}  // namespace millrace::cluster
