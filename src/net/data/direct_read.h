// The reader's side of a pull whose bytes it copies itself from memory that the owner on this host
// shares and the reader maps. Owned by a link. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "net/data/mapped_memory.h"

namespace millrace::net {

// Size on the wire, in a kPullShared frame.
inline constexpr size_t kSharedSegmentBytes = 32;

// Bytes at `offset` of the shared memory with this number, which the owner has open as
// `descriptor`.
struct SharedSegment {
  uint64_t number = 0;
  uint64_t descriptor = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

std::vector<std::byte> EncodeSegments(std::span<const SharedSegment> segments);
// An error unless they hold `bytes` in total.
Result<std::vector<SharedSegment>> DecodeSegments(std::span<const std::byte> raw, uint64_t bytes);

class DirectRead {
 public:
  // Opens and checks everything first. kUnavailable: this side cannot map the peer's memory, and
  // the owner may send the bytes instead. Any other error: the named memory does not exist.
  static Result<DirectRead> Open(MappedMemory& mapped, std::span<const SharedSegment> segments);

  // Copies some more bytes to the front of `rest` and adds them to the sum; returns how many.
  // REQUIRES: `rest` has room for the remaining bytes.
  size_t Read(std::span<std::byte> rest);
  uint64_t left() const { return left_; }
  uint32_t sum() const { return sum_; }

  std::optional<uint32_t> expected_sum;  // the owner's, once received

 private:
  DirectRead() = default;

  std::vector<std::span<const std::byte>> parts_;  // the rest of each
  std::vector<std::shared_ptr<const Mapping>> held_;
  size_t next_ = 0;
  uint64_t left_ = 0;
  uint32_t sum_ = 0;
};

}  // namespace millrace::net
