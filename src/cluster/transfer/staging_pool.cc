#include "cluster/transfer/staging_pool.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"

namespace millrace::cluster {

struct StagingPool::State {
  Mutex mutex;
  bool asked MR_GUARDED_BY(mutex) = false;  // for the plane's shared memory
  std::shared_ptr<net::SharedMemory> memory MR_GUARDED_BY(mutex);
  // A stack: the buffer returned last is taken first, because it is still in the CPU cache.
  std::vector<std::byte*> free MR_GUARDED_BY(mutex);
};

StagingPool::StagingPool(size_t buffer_bytes)
    : buffer_bytes_(buffer_bytes), state_(std::make_shared<State>()) {}

PullBuffer StagingPool::Take(net::DataPlane& plane, size_t bytes) {
  MR_CHECK(bytes <= buffer_bytes_);
  MutexLock lock(state_->mutex);
  if (!std::exchange(state_->asked, true)) {
    auto memory = plane.AllocateShared(kStagingBuffersMax * buffer_bytes_);
    if (memory.ok()) {
      state_->memory = std::move(*memory);
      for (size_t i = kStagingBuffersMax; i > 0; --i) {
        state_->free.push_back(state_->memory->bytes().data() + (i - 1) * buffer_bytes_);
      }
    } else {
      MR_LOG(warn, "no shared memory for KV, so other workers on this host pull it more slowly: {}",
             memory.status().message());
    }
  }
  if (state_->free.empty()) {
    lock.unlock();
    const std::shared_ptr<std::byte[]> own(new std::byte[bytes]);
    return {{own.get(), bytes}, own};
  }
  std::byte* place = state_->free.back();
  state_->free.pop_back();
  lock.unlock();
  const auto give_back = [state = state_](const std::byte* returned) {
    MutexLock back(state->mutex);
    state->free.push_back(const_cast<std::byte*>(returned));
  };
  return {{place, bytes}, std::shared_ptr<const std::byte>(place, give_back)};
}

}  // namespace millrace::cluster
