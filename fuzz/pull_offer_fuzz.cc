// Offers of an owner for a reader that fetches the bytes itself: from the owner's memory, or from
// shared memory. The first byte selects the kind; the second is the requested size if the input has
// none. An accepted offer names exactly that many bytes and is written back unchanged.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "net/data/direct_read.h"

namespace millrace::net {
namespace {

template <typename Segments>
void ExpectInAll(const Segments& segments, uint64_t bytes) {
  for (const auto& s : segments) {
    MR_CHECK(s.bytes <= bytes);
    bytes -= s.bytes;
  }
  MR_CHECK(bytes == 0);
}

// The checksum of the last segments, which a fuzzer would hardly guess.
uint64_t Sum(std::span<const std::byte> raw, size_t segment_bytes) {
  uint64_t sum = 0;
  for (; raw.size() >= segment_bytes; raw = raw.first(raw.size() - segment_bytes)) {
    uint64_t n = 0;
    std::memcpy(&n, raw.data() + raw.size() - sizeof n, sizeof n);
    if (sum + n < sum) break;
    sum += n;
  }
  return sum;
}

void TryMemory(std::span<const std::byte> raw, uint64_t bytes) {
  const auto segments = DecodeMemorySegments(raw, bytes);
  if (!segments.ok()) return;
  ExpectInAll(*segments, bytes);
  MR_CHECK(std::ranges::equal(EncodeSegments(*segments), raw));
}

void TryShared(std::span<const std::byte> raw, uint64_t bytes) {
  const auto segments = DecodeSharedSegments(raw, bytes);
  if (!segments.ok()) return;
  ExpectInAll(*segments, bytes);
  MR_CHECK(std::ranges::equal(EncodeSegments(*segments), raw));
}

}  // namespace
}  // namespace millrace::net

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::net;  // NOLINT
  if (size < 2) return 0;
  const auto raw = std::as_bytes(std::span(data + 2, size - 2));
  const bool guess = (data[0] & 4) != 0;
  if (data[0] % 2 == 0) {
    TryMemory(raw, guess ? data[1] : Sum(raw, kMemorySegmentBytes));
  } else {
    TryShared(raw, guess ? data[1] : Sum(raw, kSharedSegmentBytes));
  }
  return 0;
}
