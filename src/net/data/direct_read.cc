#include "net/data/direct_read.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "net/data/crc32c.h"
#include "net/data/little_endian.h"

namespace millrace::net {
namespace {

constexpr size_t kDirectBudgetBytes = 512 << 10;  // copied at once on the loop's thread

}  // namespace

std::vector<std::byte> EncodeSegments(std::span<const SharedSegment> segments) {
  std::vector<std::byte> raw(segments.size() * kSharedSegmentBytes);
  std::byte* at = raw.data();
  for (const SharedSegment& s : segments) {
    StoreLe(at, s.number);
    StoreLe(at + 8, s.descriptor);
    StoreLe(at + 16, s.offset);
    StoreLe(at + 24, s.bytes);
    at += kSharedSegmentBytes;
  }
  return raw;
}

Result<std::vector<SharedSegment>> DecodeSegments(std::span<const std::byte> raw, uint64_t bytes) {
  if (raw.size() % kSharedSegmentBytes != 0) {
    return InvalidArgument("the list of segments is truncated");
  }
  std::vector<SharedSegment> segments;
  for (size_t at = 0; at < raw.size(); at += kSharedSegmentBytes) {
    segments.push_back({LoadLe<uint64_t>(&raw[at]), LoadLe<uint64_t>(&raw[at + 8]),
                        LoadLe<uint64_t>(&raw[at + 16]), LoadLe<uint64_t>(&raw[at + 24])});
    const uint64_t n = segments.back().bytes;
    if (n > bytes) return InvalidArgument("the segments have more bytes than announced");
    bytes -= n;
  }
  if (bytes > 0) return InvalidArgument("the segments have fewer bytes than announced");
  return segments;
}

Result<DirectRead> DirectRead::Open(MappedMemory& mapped, std::span<const SharedSegment> segments) {
  DirectRead read;
  uint64_t last_number = 0;
  for (const SharedSegment& s : segments) {
    if (s.bytes == 0) continue;
    if (read.held_.empty() || s.number != last_number) {
      MR_ASSIGN_OR_RETURN(auto mapping, mapped.Get(s.number, s.descriptor));
      read.held_.push_back(std::move(mapping));
      last_number = s.number;
    }
    const std::span<const std::byte> bytes = read.held_.back()->bytes();
    if (s.offset > bytes.size() || s.bytes > bytes.size() - s.offset) {
      return InvalidArgument(
          fmt::format("the owner named {} bytes at offset {} in shared memory of {} bytes", s.bytes,
                      s.offset, bytes.size()));
    }
    read.parts_.push_back(bytes.subspan(s.offset, s.bytes));
    read.left_ += s.bytes;
  }
  return read;
}

size_t DirectRead::Read(std::span<std::byte> rest) {
  MR_CHECK(rest.size() >= left_);
  std::span<std::byte> out = rest.first(std::min<uint64_t>(left_, kDirectBudgetBytes));
  const size_t bytes = out.size();
  while (!out.empty()) {
    MR_CHECK(next_ < parts_.size());
    std::span<const std::byte>& part = parts_[next_];
    const size_t n = std::min(out.size(), part.size());
    sum_ = CopyWithCrc32c(part.first(n), out.data(), sum_);
    out = out.subspan(n);
    part = part.subspan(n);
    if (part.empty()) ++next_;
  }
  left_ -= bytes;
  return bytes;
}

}  // namespace millrace::net
