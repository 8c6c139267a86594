// Reading the memory of another process on this host (process_vm_readv). Only addresses that the
// owner itself has given out are read; nobody can make us read or serve an address of their choice.
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "net/data/hello.h"

namespace millrace::net {

struct MemorySegment {
  uint64_t address = 0;
  uint64_t bytes = 0;
};

// Where in a list of segments the next byte lies.
struct SegmentCursor {
  size_t segment = 0;
  uint64_t offset = 0;
};

// The kernel and the namespace that process ids are meant in.
std::string ThisHostId();

// True when `process_id` is the process that showed us `cookie`, and its memory can be read. A
// process of the same number in another namespace holds something else at that address.
bool CanReadMemory(int64_t process_id, uint64_t address, const Nonce& cookie);

// Fills `out` from the cursor on and moves it. REQUIRES: the segments hold that much.
Status ReadMemory(int64_t process_id, std::span<const MemorySegment> segments,
                  SegmentCursor& cursor, std::span<std::byte> out);

}  // namespace millrace::net
