#include "net/data/same_host.h"

#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/file.h"

namespace millrace::net {
namespace {

constexpr size_t kSegmentsPerCall = 64;

}  // namespace

std::string ThisHostId() {
  std::string id;
  if (auto boot = ReadFile("/proc/sys/kernel/random/boot_id", 64); boot.ok()) {
    id = boot->substr(0, boot->find('\n'));
  }
  char space[64];
  const ssize_t n = readlink("/proc/self/ns/pid", space, sizeof(space));
  if (n > 0) id += "/" + std::string(space, static_cast<size_t>(n));
  return id;
}

bool CanReadMemory(int64_t process_id, uint64_t address, const Nonce& cookie) {
  Nonce found = {};
  SegmentCursor cursor;
  const MemorySegment segment{address, found.size()};
  return ReadMemory(process_id, {&segment, 1}, cursor, found).ok() && found == cookie;
}

Status ReadMemory(int64_t process_id, std::span<const MemorySegment> segments,
                  SegmentCursor& cursor, std::span<std::byte> out) {
  while (!out.empty()) {
    std::array<iovec, kSegmentsPerCall> remote;
    size_t count = 0, bytes = 0;
    SegmentCursor at = cursor;
    while (count < kSegmentsPerCall && bytes < out.size()) {
      MR_CHECK(at.segment < segments.size());
      const MemorySegment& s = segments[at.segment];
      const size_t n = std::min<uint64_t>(s.bytes - at.offset, out.size() - bytes);
      // NOLINTNEXTLINE: an address in another process
      if (n > 0) remote[count++] = {reinterpret_cast<void*>(s.address + at.offset), n};
      bytes += n;
      at.offset += n;
      if (at.offset == s.bytes) at = {at.segment + 1, 0};
    }
    const iovec local{out.data(), bytes};
    const ssize_t n = process_vm_readv(static_cast<pid_t>(process_id), &local, 1, remote.data(),
                                       count, /*flags=*/0);
    if (n != static_cast<ssize_t>(bytes)) {
      return Unavailable(fmt::format("cannot read the memory of process {}: {}", process_id,
                                     n < 0 ? std::strerror(errno) : "a part does not exist"));
    }
    out = out.subspan(bytes);
    cursor = at;
  }
  return OkStatus();
}

}  // namespace millrace::net
