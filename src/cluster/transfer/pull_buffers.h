// PullBuffers: room for the parts of pulls. A buffer is not cleared, and one that was given back is
// used again: fresh memory costs a page fault and a cleared page for every 4 KiB, which took most
// of the time of a pull.
//
// Owned by whoever pulls. Any thread may call it. Buffers may outlive it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace millrace::cluster {

struct PullBuffer {
  std::span<std::byte> bytes;       // not initialized
  std::shared_ptr<const void> pin;  // gives the buffer back when released
};

class PullBuffers {
 public:
  // Keeps at most `kept_max` free buffers, of `buffer_bytes` each.
  PullBuffers(size_t buffer_bytes, size_t kept_max);

  // More than `buffer_bytes`: a buffer that is not kept.
  PullBuffer Take(size_t bytes);

 private:
  struct State;

  const size_t buffer_bytes_;
  const std::shared_ptr<State> state_;
};

}  // namespace millrace::cluster
