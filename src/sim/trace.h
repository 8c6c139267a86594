// Published request traces: when each request came and how long it was. Untrusted text; every error
// names the line.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::sim {

inline constexpr size_t kTraceBytesMax = size_t{256} << 20;
inline constexpr int kTraceTokensMax = 1 << 22;      // of a prompt or an answer
inline constexpr size_t kTraceHashIdsMax = 1 << 16;  // of one request
inline constexpr int kMooncakeBlockTokens = 512;

struct TraceEntry {
  double arrival_s = 0;  // from the first request
  int input_tokens = 0;
  int output_tokens = 0;
  std::vector<int64_t> hash_ids;  // Mooncake: one per 512 prompt tokens; equal ids, equal tokens
};

// Azure's "TIMESTAMP,ContextTokens,GeneratedTokens" CSV (TIMESTAMP as "2023-11-16
// 18:15:46.6805900") or Mooncake's JSONL ("timestamp" in ms, "input_length", "output_length",
// "hash_ids"), told apart by the first byte. At most `entries_max` entries are read. Sorted by
// arrival.
Result<std::vector<TraceEntry>> ParseTrace(std::string_view text, size_t entries_max);

// Stretches time so that the mean rate becomes `rate` requests per second. REQUIRES: rate > 0.
void RescaleRate(std::vector<TraceEntry>& entries, double rate);

}  // namespace millrace::sim
