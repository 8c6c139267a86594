// The limits of a message. A message that exceeds one is refused as a whole, with the field's name;
// a sender stops at kMessageBytesMax. Constants; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace millrace::wire {

inline constexpr size_t kMessageBytesMax = size_t{64} << 20;
inline constexpr size_t kHeartbeatBytesMax = 256;
inline constexpr size_t kEchoBytesMax = 256 * 1024;  // that an echo carries, or asks for

inline constexpr size_t kSequencesPerStepMax = 16384;
inline constexpr size_t kTokensPerStepMax = size_t{1} << 20;
inline constexpr size_t kPromptTokensMax = size_t{1} << 22;
inline constexpr size_t kPooledNumbersMax = size_t{1} << 18;  // of one vector
inline constexpr size_t kBlocksPerMessageMax = size_t{1} << 20;
inline constexpr size_t kCopiesPerStepMax = size_t{1} << 20;

inline constexpr int kLayersMax = 65536;
inline constexpr size_t kHopsPerPipelineMax = 256;
inline constexpr size_t kPeersPerMessageMax = 1024;  // sources of a shard or of a pull
inline constexpr size_t kHeldShardsMax = 256;
inline constexpr size_t kBatchPartsMax = 4096;
inline constexpr size_t kEosTokensMax = 64;
inline constexpr int kBlockSizeMax = 65536;  // tokens

inline constexpr size_t kNameBytesMax = 256;  // names, addresses, fingerprints, devices
inline constexpr int kCoresMax = 65536;
inline constexpr double kPriceUsdPerHourMax = 10000;
inline constexpr size_t kProfileTextBytesMax = size_t{64} << 10;
inline constexpr size_t kTokenBytesMax = 4096;  // of a join token
inline constexpr size_t kTokenTableBytesMax = size_t{32} << 20;
inline constexpr size_t kStatusBytesMax = 1024;  // the sender truncates a longer text
inline constexpr Duration kDurationMax = Duration::Seconds(86400.0 * 366);

}  // namespace millrace::wire
