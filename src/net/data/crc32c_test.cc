#include "net/data/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace millrace::net {
namespace {

using internal::CopyWithCrc32cBy;
using internal::Crc32cBy;
using internal::CrcAvailable;
using internal::CrcKind;

constexpr CrcKind kKinds[] = {CrcKind::kTable, CrcKind::kFold128, CrcKind::kFold512};

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Bit by bit, from the definition.
uint32_t Naive(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (std::byte b : bytes) {
    crc ^= static_cast<uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

// Values published with RFC 3720, appendix B.4, and the check value of CRC catalogues.
TEST(Crc32c, PublishedValues) {
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xff});
  std::vector<std::byte> rising(32);
  for (size_t i = 0; i < 32; ++i) rising[i] = static_cast<std::byte>(i);
  for (CrcKind kind : kKinds) {
    if (!CrcAvailable(kind)) continue;
    EXPECT_EQ(Crc32cBy(kind, Bytes("123456789"), 0), 0xE3069283u);
    EXPECT_EQ(Crc32cBy(kind, zeros, 0), 0x8A9136AAu);
    EXPECT_EQ(Crc32cBy(kind, ones, 0), 0x62A8AB43u);
    EXPECT_EQ(Crc32cBy(kind, rising, 0), 0x46DD794Eu);
  }
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32c, EveryImplementationAgreesAtEveryLengthAndOffset) {
  Rng rng(7);
  std::vector<std::byte> data(5000);
  for (std::byte& b : data) b = static_cast<std::byte>(rng.Next());
  for (size_t length = 0; length < 1200; ++length) {
    const auto at = static_cast<size_t>(rng.Between(0, 63));
    const auto before = static_cast<uint32_t>(rng.Next());
    const std::span<const std::byte> part(data.data() + at, length);
    const uint32_t want = Naive(part, before);
    for (CrcKind kind : kKinds) {
      if (CrcAvailable(kind)) {
        ASSERT_EQ(Crc32cBy(kind, part, before), want) << CrcKindName(kind) << " " << length;
        const auto place = static_cast<size_t>(rng.Between(1, 63));
        std::vector<std::byte> copy(place + length + 1, std::byte{0x5a});
        ASSERT_EQ(CopyWithCrc32cBy(kind, part, copy.data() + place, before), want);
        ASSERT_TRUE(std::ranges::equal(part, std::span(copy).subspan(place, length)));
        ASSERT_EQ(copy[place - 1], std::byte{0x5a});
        ASSERT_EQ(copy[place + length], std::byte{0x5a});
      }
    }
  }
}

TEST(Crc32c, PiecesMakeTheWhole) {
  Rng rng(8);
  std::vector<std::byte> data(70000);
  for (std::byte& b : data) b = static_cast<std::byte>(rng.Next());
  const uint32_t whole = Crc32c(data);
  EXPECT_EQ(whole, Naive(data, 0));
  for (CrcKind kind : kKinds) {
    if (!CrcAvailable(kind)) continue;
    std::vector<std::byte> copy(data.size());
    EXPECT_EQ(CopyWithCrc32cBy(kind, data, copy.data(), 0), whole);
    EXPECT_EQ(copy, data);
  }
  for (int round = 0; round < 50; ++round) {
    uint32_t crc = 0;
    for (size_t at = 0; at < data.size();) {
      const size_t n =
          std::min<size_t>(data.size() - at, static_cast<size_t>(rng.Between(1, 9000)));
      crc = Crc32c(std::span(data).subspan(at, n), crc);
      at += n;
    }
    ASSERT_EQ(crc, whole);
  }
}

}  // namespace
}  // namespace millrace::net
