// Offers of an owner for a reader that copies the bytes from shared memory itself. Bit 2 of the
// first byte: the second byte is the requested size, else what the segments hold. An accepted offer
// names exactly that many bytes and is written back unchanged.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "net/data/direct_read.h"

namespace millrace::net {
namespace {

// The bytes of the last segments, which a fuzzer would hardly guess.
uint64_t Sum(std::span<const std::byte> raw) {
  uint64_t sum = 0;
  for (; raw.size() >= kSharedSegmentBytes; raw = raw.first(raw.size() - kSharedSegmentBytes)) {
    uint64_t n = 0;
    std::memcpy(&n, raw.data() + raw.size() - sizeof n, sizeof n);
    if (sum + n < sum) break;
    sum += n;
  }
  return sum;
}

void Try(std::span<const std::byte> raw, uint64_t bytes) {
  const auto segments = DecodeSegments(raw, bytes);
  if (!segments.ok()) return;
  for (const SharedSegment& s : *segments) {
    MR_CHECK(s.bytes <= bytes);
    bytes -= s.bytes;
  }
  MR_CHECK(bytes == 0);
  MR_CHECK(std::ranges::equal(EncodeSegments(*segments), raw));
}

}  // namespace
}  // namespace millrace::net

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::net;  // NOLINT
  if (size < 2) return 0;
  const auto raw = std::as_bytes(std::span(data + 2, size - 2));
  Try(raw, (data[0] & 4) != 0 ? data[1] : Sum(raw));
  return 0;
}
