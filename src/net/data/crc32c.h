// CRC-32C (Castagnoli), as iSCSI and ext4 use it, by the fastest instructions this processor has.
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace millrace::net {

// The checksum of `bytes` appended to data whose checksum is `before`: Crc32c(b, Crc32c(a)) is that
// of ab.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

// Copies `from` to `to` and computes the checksum of the copy, in one pass if the processor can,
// which costs hardly more than copying. REQUIRES: they do not overlap.
uint32_t CopyWithCrc32c(std::span<const std::byte> from, std::byte* to, uint32_t before = 0);

namespace internal {

// Each implementation, for tests and benchmarks. False: this processor does not support it.
enum class CrcKind { kTable, kFold128, kFold512 };
bool CrcAvailable(CrcKind kind);
uint32_t Crc32cBy(CrcKind kind, std::span<const std::byte> bytes, uint32_t before);
uint32_t CopyWithCrc32cBy(CrcKind kind, std::span<const std::byte> from, std::byte* to,
                          uint32_t before);
std::string_view CrcKindName(CrcKind kind);
CrcKind BestCrc();

}  // namespace internal
}  // namespace millrace::net
