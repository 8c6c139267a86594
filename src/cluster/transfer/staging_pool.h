// StagingPool: a few buffers of one size that hold KV after it was read from its blocks and before
// a peer pulls it. They lie in memory that peers on this host can map. If all of them are in use,
// or the system provides no shared memory, Take returns ordinary memory: this is slower but works.
//
// Owned by the KV exchange. Any thread may call it. Buffers may outlive the pool and the data
// plane.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "cluster/transfer/pull_buffers.h"
#include "net/data/data_plane.h"

namespace millrace::cluster {

inline constexpr size_t kStagingBuffersMax = 16;  // in shared memory

class StagingPool {
 public:
  // The memory is allocated with the first buffer, and its pages when they are written.
  explicit StagingPool(size_t buffer_bytes);

  // REQUIRES: `bytes` is at most `buffer_bytes`.
  PullBuffer Take(net::DataPlane& plane, size_t bytes);

 private:
  struct State;

  const size_t buffer_bytes_;
  const std::shared_ptr<State> state_;
};

}  // namespace millrace::cluster
