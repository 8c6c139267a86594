// The reader's side of a pull whose bytes it fetches itself from the owner's memory on this host:
// from memory that the owner shares and the reader maps, or with process_vm_readv. Owned by a link.
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "net/data/mapped_memory.h"
#include "net/data/same_host.h"

namespace millrace::net {

// Size on the wire, in a kPullDirect and a kPullShared frame.
inline constexpr size_t kMemorySegmentBytes = 16;
inline constexpr size_t kSharedSegmentBytes = 32;

// Bytes at `offset` of the shared memory with this number, which the owner has open as
// `descriptor`.
struct SharedSegment {
  uint64_t number = 0;
  uint64_t descriptor = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

std::vector<std::byte> EncodeSegments(std::span<const MemorySegment> segments);
std::vector<std::byte> EncodeSegments(std::span<const SharedSegment> segments);
// An error unless they hold `bytes` in total.
Result<std::vector<MemorySegment>> DecodeMemorySegments(std::span<const std::byte> raw,
                                                        uint64_t bytes);
Result<std::vector<SharedSegment>> DecodeSharedSegments(std::span<const std::byte> raw,
                                                        uint64_t bytes);

class DirectRead {
 public:
  explicit DirectRead(uint64_t total) : total_(total) {}
  virtual ~DirectRead() = default;

  // Reads some more bytes to the front of `rest` and adds them to the sum; returns how many. Not to
  // be called after an error. REQUIRES: `rest` has room for the remaining bytes.
  Result<size_t> Read(std::span<std::byte> rest);
  uint64_t left() const { return total_ - done_; }
  uint32_t sum() const { return sum_; }

  std::optional<uint32_t> expected_sum;  // the owner's, once received

 private:
  // `rest` has the remaining bytes.
  virtual Result<size_t> Copy(std::span<std::byte> rest, uint32_t& sum) = 0;

  const uint64_t total_;
  uint64_t done_ = 0;
  uint32_t sum_ = 0;
};

std::unique_ptr<DirectRead> ReadFromProcess(int64_t process_id, std::vector<MemorySegment> segments,
                                            uint64_t total);

// Opens and checks everything first. kUnavailable: this side cannot map the peer's memory, and
// another transport may work. Any other error: the named memory does not exist.
Result<std::unique_ptr<DirectRead>> ReadFromShared(MappedMemory& mapped,
                                                   std::span<const SharedSegment> segments,
                                                   uint64_t total);

}  // namespace millrace::net
