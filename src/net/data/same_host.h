// Reads the memory of another process on this host (process_vm_readv). Only addresses that the
// owner itself has sent are read; no third process can choose an address to read or serve. Any
// thread.
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

// The position of the next byte in a list of segments.
struct SegmentCursor {
  size_t segment = 0;
  uint64_t offset = 0;
};

// Identifies the kernel and the namespace of the process ids.
std::string ThisHostId();

// True when `process_id` is the process that sent `cookie`, and its memory can be read. A process
// with the same number in another namespace has other bytes at that address.
bool CanReadMemory(int64_t process_id, uint64_t address, const Nonce& cookie);

// Fills `out` from the cursor on and moves it. REQUIRES: the segments hold that much.
Status ReadMemory(int64_t process_id, std::span<const MemorySegment> segments,
                  SegmentCursor& cursor, std::span<std::byte> out);

}  // namespace millrace::net
