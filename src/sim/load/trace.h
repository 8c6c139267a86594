// Published request traces: when each request arrived and how long it was. Untrusted text; every
// error names the line. Values; any thread.
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

// What a prompt begins with, as names of its parts: where two prompts have equal ids, they have
// equal tokens. The last part may be cut short by the prompt's end.
struct PromptPrefix {
  std::vector<int64_t> ids;
  int tokens_per_id = 0;
};

struct TraceEntry {
  double arrival_s = 0;  // from the first request
  int input_tokens = 0;
  int output_tokens = 0;
  PromptPrefix prefix;
};

// The first line determines the format:
//   Azure           TIMESTAMP,ContextTokens,GeneratedTokens; TIMESTAMP as "2023-11-16 18:15:46.68"
//   plain           arrival_s,prompt_tokens,output_tokens; arrival_s in seconds. With the columns
//                   prefix_id,prefix_tokens: what the prompt begins with; empty: nothing shared
//   splitwise-sim   arrival_timestamp,prompt_size,token_size; arrival_timestamp in seconds
//   Mooncake        JSON lines: "timestamp" in ms, "input_length", "output_length", "hash_ids": one
//                   for each 512 prompt tokens
// Columns may be in any order, with others between them. Reads at most `entries_max` entries. A
// trace without a request, or with times that go back, is an error.
Result<std::vector<TraceEntry>> ParseTrace(std::string_view text, size_t entries_max);

// Stretches time so that the mean rate becomes `rate` requests per second. REQUIRES: rate > 0.
void RescaleRate(std::vector<TraceEntry>& entries, double rate);

}  // namespace millrace::sim
