// StagingPool: where KV lies between being read from its blocks and being pulled: a few buffers of
// one size in memory that peers on this host can map. When all are being pulled, or the system
// gives no memory to share, a buffer is ordinary memory, which works as well, only slower.
//
// Owned by the KV exchange. Any thread; buffers may outlive the pool and the data plane.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "net/data_plane.h"

namespace millrace::cluster {

inline constexpr size_t kStagingBuffersMax = 16;  // in shared memory

class StagingPool {
 public:
  // The memory is allocated with the first buffer, and its pages when they are written.
  explicit StagingPool(size_t buffer_bytes);

  struct Buffer {
    std::span<std::byte> bytes;
    std::shared_ptr<const void> pin;  // gives the buffer back when it goes
  };
  // REQUIRES: `bytes` is no more than a buffer holds. What it holds at first is anybody's guess.
  Buffer Take(net::DataPlane& plane, size_t bytes);

 private:
  struct State;

  const size_t buffer_bytes_;
  const std::shared_ptr<State> state_;
};

}  // namespace millrace::cluster
