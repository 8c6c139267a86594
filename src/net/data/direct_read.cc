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

// Read with one system call and then summed: small enough to stay in a core's own cache, large
// enough to make the call cheap.
constexpr size_t kProcessPieceBytes = 128 << 10;

class ProcessRead final : public DirectRead {
 public:
  ProcessRead(int64_t process_id, std::vector<MemorySegment> segments, uint64_t total)
      : DirectRead(total), process_id_(process_id), segments_(std::move(segments)) {}

 private:
  Result<size_t> Copy(std::span<std::byte> rest, uint32_t& sum) override {
    std::span<std::byte> out = rest.first(std::min(rest.size(), kDirectBudgetBytes));
    const size_t bytes = out.size();
    while (!out.empty()) {
      const auto piece = out.first(std::min(out.size(), kProcessPieceBytes));
      MR_RETURN_IF_ERROR(ReadMemory(process_id_, segments_, cursor_, piece));
      sum = Crc32c(piece, sum);
      out = out.subspan(piece.size());
    }
    return bytes;
  }

  const int64_t process_id_;
  const std::vector<MemorySegment> segments_;
  SegmentCursor cursor_;
};

class SharedRead final : public DirectRead {
 public:
  using Parts = std::vector<std::span<const std::byte>>;
  SharedRead(Parts parts, std::vector<std::shared_ptr<const Mapping>> held, uint64_t total)
      : DirectRead(total), parts_(std::move(parts)), held_(std::move(held)) {}

 private:
  Result<size_t> Copy(std::span<std::byte> rest, uint32_t& sum) override {
    std::span<std::byte> out = rest.first(std::min(rest.size(), kDirectBudgetBytes));
    const size_t bytes = out.size();
    while (!out.empty()) {
      MR_CHECK(next_ < parts_.size());
      std::span<const std::byte>& part = parts_[next_];
      const size_t n = std::min(out.size(), part.size());
      sum = CopyWithCrc32c(part.first(n), out.data(), sum);
      out = out.subspan(n);
      part = part.subspan(n);
      if (part.empty()) ++next_;
    }
    return bytes;
  }

  Parts parts_;  // the rest of each
  const std::vector<std::shared_ptr<const Mapping>> held_;
  size_t next_ = 0;
};

// An error unless the segments name `bytes` in total. Each has `size` bytes on the wire; the last
// eight give the number of bytes that it names.
Status CheckSegments(std::span<const std::byte> raw, size_t size, uint64_t bytes) {
  if (raw.size() % size != 0) return InvalidArgument("the list of segments is truncated");
  for (size_t at = 0; at < raw.size(); at += size) {
    const auto n = LoadLe<uint64_t>(&raw[at + size - 8]);
    if (n > bytes) return InvalidArgument("the segments have more bytes than announced");
    bytes -= n;
  }
  return bytes == 0 ? OkStatus() : InvalidArgument("the segments have fewer bytes than announced");
}

}  // namespace

std::vector<std::byte> EncodeSegments(std::span<const MemorySegment> segments) {
  std::vector<std::byte> raw(segments.size() * kMemorySegmentBytes);
  std::byte* at = raw.data();
  for (const MemorySegment& s : segments) {
    StoreLe(at, s.address);
    StoreLe(at + 8, s.bytes);
    at += kMemorySegmentBytes;
  }
  return raw;
}

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

Result<std::vector<MemorySegment>> DecodeMemorySegments(std::span<const std::byte> raw,
                                                        uint64_t bytes) {
  MR_RETURN_IF_ERROR(CheckSegments(raw, kMemorySegmentBytes, bytes));
  std::vector<MemorySegment> segments;
  for (size_t at = 0; at < raw.size(); at += kMemorySegmentBytes) {
    segments.push_back({LoadLe<uint64_t>(&raw[at]), LoadLe<uint64_t>(&raw[at + 8])});
  }
  return segments;
}

Result<std::vector<SharedSegment>> DecodeSharedSegments(std::span<const std::byte> raw,
                                                        uint64_t bytes) {
  MR_RETURN_IF_ERROR(CheckSegments(raw, kSharedSegmentBytes, bytes));
  std::vector<SharedSegment> segments;
  for (size_t at = 0; at < raw.size(); at += kSharedSegmentBytes) {
    segments.push_back({LoadLe<uint64_t>(&raw[at]), LoadLe<uint64_t>(&raw[at + 8]),
                        LoadLe<uint64_t>(&raw[at + 16]), LoadLe<uint64_t>(&raw[at + 24])});
  }
  return segments;
}

Result<size_t> DirectRead::Read(std::span<std::byte> rest) {
  MR_CHECK(rest.size() >= left());
  MR_ASSIGN_OR_RETURN(const size_t bytes, Copy(rest.first(left()), sum_));
  done_ += bytes;
  return bytes;
}

std::unique_ptr<DirectRead> ReadFromProcess(int64_t process_id, std::vector<MemorySegment> segments,
                                            uint64_t total) {
  return std::make_unique<ProcessRead>(process_id, std::move(segments), total);
}

Result<std::unique_ptr<DirectRead>> ReadFromShared(MappedMemory& mapped,
                                                   std::span<const SharedSegment> segments,
                                                   uint64_t total) {
  SharedRead::Parts parts;
  std::vector<std::shared_ptr<const Mapping>> held;
  uint64_t last_number = 0;
  for (const SharedSegment& s : segments) {
    if (s.bytes == 0) continue;
    if (held.empty() || s.number != last_number) {
      MR_ASSIGN_OR_RETURN(auto mapping, mapped.Get(s.number, s.descriptor));
      held.push_back(std::move(mapping));
      last_number = s.number;
    }
    const std::span<const std::byte> bytes = held.back()->bytes();
    if (s.offset > bytes.size() || s.bytes > bytes.size() - s.offset) {
      return InvalidArgument(
          fmt::format("the owner named {} bytes at offset {} in shared memory of {} bytes", s.bytes,
                      s.offset, bytes.size()));
    }
    parts.push_back(bytes.subspan(s.offset, s.bytes));
  }
  return std::unique_ptr<DirectRead>(
      std::make_unique<SharedRead>(std::move(parts), std::move(held), total));
}

}  // namespace millrace::net
