// CRC-32C (Castagnoli), as iSCSI and ext4 use it, by the fastest instructions this processor has.
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace millrace::net {

// Of `bytes` appended to something whose checksum is `before`: Crc32c(b, Crc32c(a)) is that of ab.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// Copies `from` to `to` and sums what is copied, in one pass where the processor can: hardly more
// than copying alone. REQUIRES: they do not overlap.
uint32_t CopyWithCrc32c(std::span<const std::byte> from, std::byte* to, uint32_t before = 0);

namespace internal {

// Each way of computing it, for tests and benchmarks. False: this processor cannot.
enum class CrcKind { kTable, kFold128, kFold512 };
bool CrcAvailable(CrcKind kind);
uint32_t Crc32cBy(CrcKind kind, std::span<const std::byte> bytes, uint32_t before);
uint32_t CopyWithCrc32cBy(CrcKind kind, std::span<const std::byte> from, std::byte* to,
                          uint32_t before);
std::string_view CrcKindName(CrcKind kind);
CrcKind BestCrc();

}  // namespace internal
}  // namespace millrace::net
