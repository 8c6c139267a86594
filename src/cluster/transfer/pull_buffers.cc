#include "cluster/transfer/pull_buffers.h"

#include <utility>
#include <vector>

#include "base/mutex.h"

namespace millrace::cluster {

struct PullBuffers::State {
  explicit State(size_t most) : kept_max(most) {}

  const size_t kept_max;
  Mutex mutex;
  // A stack: the buffer returned last is taken first, because it is still in the CPU cache.
  std::vector<std::unique_ptr<std::byte[]>> free MR_GUARDED_BY(mutex);
};

PullBuffers::PullBuffers(size_t buffer_bytes, size_t kept_max)
    : buffer_bytes_(buffer_bytes), state_(std::make_shared<State>(kept_max)) {}

PullBuffer PullBuffers::Take(size_t bytes) {
  if (bytes > buffer_bytes_) {
    const std::shared_ptr<std::byte[]> own(new std::byte[bytes]);
    return {{own.get(), bytes}, own};
  }
  std::unique_ptr<std::byte[]> buffer;
  {
    const MutexLock lock(state_->mutex);
    if (!state_->free.empty()) {
      buffer = std::move(state_->free.back());
      state_->free.pop_back();
    }
  }
  if (buffer == nullptr) buffer.reset(new std::byte[buffer_bytes_]);
  std::byte* const place = buffer.release();
  const auto give_back = [state = state_](std::byte* returned) {
    std::unique_ptr<std::byte[]> again(returned);
    const MutexLock lock(state->mutex);
    if (state->free.size() < state->kept_max) state->free.push_back(std::move(again));
  };
  return {{place, bytes}, std::shared_ptr<std::byte>(place, give_back)};
}

}  // namespace millrace::cluster
