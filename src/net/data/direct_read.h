// The reader's side of a pull whose bytes it fetches itself, out of memory of the owner. On this
// host: out of memory that the owner shares and this side maps, or with process_vm_readv. On
// another: with the network card (remote_read.h). One thread.
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

// On the wire, in a kPullDirect and a kPullShared frame.
inline constexpr size_t kMemorySegmentBytes = 16;
inline constexpr size_t kSharedSegmentBytes = 32;

// Bytes at `offset` of the shared memory of this number, which is open there as `descriptor`.
struct SharedSegment {
  uint64_t number = 0;
  uint64_t descriptor = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

std::vector<std::byte> EncodeSegments(std::span<const MemorySegment> segments);
std::vector<std::byte> EncodeSegments(std::span<const SharedSegment> segments);
// An error unless they hold `bytes` in all.
Result<std::vector<MemorySegment>> DecodeMemorySegments(std::span<const std::byte> raw,
                                                        uint64_t bytes);
Result<std::vector<SharedSegment>> DecodeSharedSegments(std::span<const std::byte> raw,
                                                        uint64_t bytes);

// An error unless segments of `size` bytes on the wire, the last eight of which say how many bytes
// each names, name `bytes` in all.
Status CheckSegments(std::span<const std::byte> raw, size_t size, uint64_t bytes);

class DirectRead {
 public:
  explicit DirectRead(uint64_t total) : total_(total) {}
  virtual ~DirectRead() = default;

  // Some further bytes to the front of `rest`, and into the sum: how many. Perhaps none yet, when
  // it is waiting for them. After an error no more.
  // REQUIRES: `rest` has room for what is left, the same place each time; not waiting.
  Result<size_t> Read(std::span<std::byte> rest);
  // Something is on its way and still writes to what Read was given.
  virtual bool waiting() const { return false; }
  uint64_t left() const { return total_ - done_; }
  uint32_t sum() const { return sum_; }

  std::optional<uint32_t> expected_sum;  // the owner's, when it has come

 private:
  // `rest` has what is left.
  virtual Result<size_t> Copy(std::span<std::byte> rest, uint32_t& sum) = 0;

  const uint64_t total_;
  uint64_t done_ = 0;
  uint32_t sum_ = 0;
};

std::unique_ptr<DirectRead> ReadFromProcess(int64_t process_id, std::vector<MemorySegment> segments,
                                            uint64_t total);

// Opens and checks everything first. kUnavailable: this side cannot map the peer's memory, another
// way may do. Any other error: what the owner named is not there.
Result<std::unique_ptr<DirectRead>> ReadFromShared(MappedMemory& mapped,
                                                   std::span<const SharedSegment> segments,
                                                   uint64_t total);

}  // namespace millrace::net
